# An instance may belong to a process, a test as a rule. One that was killed outright cannot clean up behind itself, so
# the next that starts a server does.

claim_for_owner() {
    [[ -n ${RETRYRMQ_REDIS_OWNER:-} && ! -e $STATE/owner ]] || return 0
    mkdir -p "$STATE"
    remember_process "$STATE/owner.new" "$RETRYRMQ_REDIS_OWNER"
    mv "$STATE/owner.new" "$STATE/owner" # whole at once, or another would take the owner for gone
}

purge_orphans() {
    local owner name
    for owner in "$RUN_DIR"/*/owner; do
        [[ -e $owner ]] && ! process_of "$owner" >/dev/null || continue
        name=${owner%/owner}; name=${name##*/}
        [[ $name == "$INSTANCE" ]] || "$0" --instance "$name" purge || true
    done
}
