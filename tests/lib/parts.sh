# Parts of a test run, for tests/run: each with a log, a result and its times in $logs, one after the other or some at a time.

parts_at_once=${RETRYRMQ_PARTS_AT_ONCE:-2}

# Runs a part and says how it went. Processor time is that of its processes, without brokers, which are nobody's children.
part() { # NAME COMMAND…
    local name=$1 status wall cpu; shift
    wanted "$name" || return 0
    local TIMEFORMAT='%R %U %S'
    { time "$@" >"$logs/$name.log" 2>&1 </dev/null 9>&-; } 2>"$logs/$name.time"
    status=$?
    read -r wall cpu < <(tail -n 1 "$logs/$name.time" | awk '{ printf "%.0f %.0f\n", $1, $2 + $3 }')
    if ((status == 0)); then
        echo "ok $wall $cpu" >"$logs/$name.result"
        echo "ok      $name ($wall s)"
    else
        echo "FAILED $wall $cpu" >"$logs/$name.result"
        { cat "$logs/$name.log"; echo "FAILED  $name ($wall s, exit status $status); its log is above and in $logs/$name.log"; } |
            flock "$logs" cat # two logs at once would be mixed
    fi
    return "$status"
}

# Runs a part beside others, when there is room.
side_part() { # NAME COMMAND…
    while (($(jobs -rp | wc -l) >= parts_at_once)); do wait -n || true; done
    part "$@" &
}

skipped() { # NAME WHY
    ! wanted "$1" || { echo "skipped - - $2" >"$logs/$1.result"; echo "skipped $1: $2"; }
}

wanted() { [[ -z ${RETRYRMQ_PARTS:-} || " build $RETRYRMQ_PARTS " == *" $1 "* ]]; }

failed_parts() {
    grep -l '^FAILED' "$logs"/*.result | sed 's:.*/::; s:\.result$::'
}

# Every part with its times, how many tests passed and failed, and whether all parts are ok.
report() { # SECONDS
    local file result wall cpu why failed=0 seconds=$1
    printf '\n%-24s %-8s %8s %14s\n' part result seconds 'processor s'
    while read -r file; do
        read -r result wall cpu why <"$file"
        [[ $result != FAILED ]] || failed=1
        printf '%-24s %-8s %8s %14s  %s\n' "$(basename "$file" .result)" "$result" "$wall" "$cpu" "${why:-}"
    done < <(ls -tr "$logs"/*.result)
    printf '%-24s %-8s %8s\n\n' all "$( ((failed)) && echo FAILED || echo ok)" "$seconds"
    local broken=()
    mapfile -t broken < <(failed_parts | sed "s:.*:$logs/&.log:" | xargs -r ls 2>/dev/null)
    ((!${#broken[@]})) || failures "${broken[@]}"
    counted "$logs"/*.log
    return "$failed"
}

# The names of the tests that failed, and why: a log that is cut says at its end what matters.
failures() { # LOG…
    awk '
        FNR == 1 { part = FILENAME; sub(/.*\//, "", part); sub(/\.log$/, "", part); left = 0 }
        function say(line) { print "FAILED  " part ": " line }
        left > 0 { if (/^stack backtrace:|^note: / || !NF) left = 0; else { print "            " substr($0, 1, 300); left-- } }
        /^test .* \.\.\. FAILED$/ { say($2) }
        /^thread .* panicked at / { print "        " substr($0, 1, 300); left = 8 }
        /^not ok [0-9]+ - / || /^ *--- FAIL: / || /^(FAILED|ERROR) [^ ]+::/ { sub(/^ */, ""); say(substr($0, 1, 300)) }
    ' "$@"
    echo
}

# How many tests ran, by the closing lines of libtest, pytest, node and go test.
counted() { # LOG…
    awk '
        /^test result: / { passed += $4; failed += $6; skipped += $8 }
        /^# pass [0-9]+$/ { passed += $3 }
        /^# fail [0-9]+$/ { failed += $3 }
        /^# skipped [0-9]+$/ { skipped += $3 }
        /^=* ?([0-9]+ (passed|failed|skipped|errors?),? ?)+.* in [0-9.]+s/ {
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed/) passed += $(i - 1)
                if ($i ~ /^(failed|error)/) failed += $(i - 1)
                if ($i ~ /^skipped/) skipped += $(i - 1)
            }
        }
        /^ *--- PASS: / { passed++ }
        /^ *--- FAIL: / { failed++ }
        /^ *--- SKIP: / { skipped++ }
        END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }
    ' "$@"
}
