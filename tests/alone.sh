# For the bindings' `test` scripts, which source it: the examples of all languages use a queue `orders`.

# No other language's examples run until file descriptor 9 is closed, at the latest by the end of the shell that calls this.
# tests/run says whether there are any.
alone() {
    if [[ -n ${RETRYRMQ_EXAMPLES_LOCK:-} ]]; then
        exec 9>"$RETRYRMQ_EXAMPLES_LOCK" && flock 9
    fi
}
