# Ports of a node: one number is claimed and the others follow from it, so that one file says all. Claims are made under
# a lock and kept in one place for the whole machine, since ports are the machine's, and not in RETRYRMQ_BROKER_HOME:
# a node that is starting, or was killed, has a port that nobody listens on.

CLAIMS_DIR=/tmp/retryrmq-ports-$EUID # of a user; those of other users are only seen once they listen

tls_port() { echo $(($1 + 5000)); }
management_port() { echo $(($1 + 10000)); }
epmd_port() { echo $(($1 + 15000)); }
distribution_port() { echo $(($1 + 20000)); }
mqtt_port() { echo $(($1 + 25000)); }
stomp_port() { echo $(($1 + 26000)); }

preferred_port() { # VERSION N
    local base
    case $1 in 3.10) base=5610 ;; 4.0) base=5620 ;; 4.3) base=5630 ;; esac
    (($2 > 9)) || echo $((base + $2))
}

node_port() { cat "$(node_dir "$1" "$2")/port" 2>/dev/null; } # VERSION N

claim_ports() { # VERSION N: a node keeps what it has, because its clients reconnect there
    local dir; dir=$(node_dir "$1" "$2")
    [[ ! -s $dir/port ]] || return 0
    mkdir -p -m 700 "$CLAIMS_DIR"
    (
        flock 8
        for port in $(preferred_port "$1" "$2") {5640..5999}; do
            ! is_claimed "$port" && all_free "$port" || continue
            echo "$dir" >"$CLAIMS_DIR/$port"
            echo "$port" >"$dir/port"
            exit 0
        done
        die "no free port between 5610 and 5999"
    ) 8>"$CLAIMS_DIR/lock"
}

is_claimed() { # PORT: a claim ends with the node that it is for
    local dir
    dir=$(cat "$CLAIMS_DIR/$1" 2>/dev/null) && [[ $(cat "$dir/port" 2>/dev/null) == "$1" ]]
}

all_free() { # PORT
    local port
    for port in "$1" "$(tls_port "$1")" "$(management_port "$1")" "$(epmd_port "$1")" "$(distribution_port "$1")" \
        "$(mqtt_port "$1")" "$(stomp_port "$1")"; do
        ! listens 127.0.0.1 "$port" || return 1
    done
}
