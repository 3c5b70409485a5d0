# Processes we started, each known by its pid and its start time, so that a pid that was given to somebody else in
# the meantime is never signalled.

start_time() { # PID → clock ticks, or nothing when there is no such process or only a zombie whose threads are gone
    local fields
    { read -r fields <"/proc/$1/stat"; } 2>/dev/null || return 1
    read -ra fields <<<"${fields##*) }"
    [[ ${fields[0]} != Z || ${fields[17]} -gt 1 ]] && echo "${fields[19]}"
}

remember_process() { # FILE PID
    echo "$2 $(start_time "$2" || true)" >"$1"
}

process_of() { # FILE → the pid, while that very process is alive
    local pid started
    read -r pid started 2>/dev/null <"$1" || return 1
    [[ -n $started && $(start_time "$pid") == "$started" ]] && echo "$pid"
}

end_process() { # SIGNAL FILE: and waits until it is gone
    local pid deadline=$((SECONDS + 60))
    pid=$(process_of "$2") || return 0
    kill "-$1" "$pid" 2>/dev/null || true
    while process_of "$2" >/dev/null; do
        if ((SECONDS > deadline)); then
            echo "pid $pid does not end on SIG$1, so it is killed" >&2
            kill -KILL "$pid" 2>/dev/null || true
            deadline=$((SECONDS + 60))
        fi
        sleep 0.1
    done
}
