# Ports of a node: one number is claimed and the others follow from it, so that one file says all. The claim is made
# under a lock, and every node of every instance is looked at, so that two runs side by side never choose the same.

tls_port() { echo $(($1 + 5000)); }
management_port() { echo $(($1 + 10000)); }
epmd_port() { echo $(($1 + 15000)); }
distribution_port() { echo $(($1 + 20000)); }

preferred_port() { # VERSION N
    local base
    case $1 in 3.10) base=5610 ;; 4.0) base=5620 ;; 4.3) base=5630 ;; esac
    (($2 > 9)) || echo $((base + $2))
}

node_port() { cat "$(node_dir "$1" "$2")/port" 2>/dev/null; } # VERSION N

claim_ports() { # VERSION N: a node keeps what it has, because its clients reconnect there
    local dir; dir=$(node_dir "$1" "$2")
    [[ ! -s $dir/port ]] || return 0
    (
        flock 8
        claimed=" $(cat "$RUN_DIR"/*/*/port 2>/dev/null | tr '\n' ' ' || true)"
        for port in $(preferred_port "$1" "$2") {5640..5999}; do
            [[ $claimed != *" $port "* ]] && all_free "$port" || continue
            echo "$port" >"$dir/port"
            exit 0
        done
        die "no free port between 5610 and 5999"
    ) 8>"$RUN_DIR/ports.lock"
}

all_free() { # PORT
    local port
    for port in "$1" "$(tls_port "$1")" "$(management_port "$1")" "$(epmd_port "$1")" "$(distribution_port "$1")"; do
        ! listens 127.0.0.1 "$port" || return 1
    done
}
