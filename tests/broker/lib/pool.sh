# Nodes for one test each. A test releases its node, which is emptied and kept for another test, because a new one costs four times the processor
# time. Such a node is `idle`: a file of this name lists its plugins, and whoever removes the file has the node.

FIRST_SPAWNED=10 # below are the numbers that people choose
IDLE_NODES=3 # of a version: each has 150 MB of memory, and does nothing

spawn() { # VERSION [LINE…]
    local n
    if n=$(take_idle "$@"); then
        (($# == 1)) || printf '%s\n' "${@:2}" >"$(node_dir "$1" "$n")/extra.conf"
        "${KIND}_refill" "$1" "$n"
        wait_until_serving "$1" "$n"
    else
        n=$FIRST_SPAWNED
        until mkdir -p "$STATE" && mkdir "$(node_dir "$1" "$n")" 2>/dev/null; do n=$((n + 1)); done
        start "$1" "$n" "${@:2}"
    fi
    echo "$n"
}

release() { # VERSION N
    (($2 >= FIRST_SPAWNED)) || die "$1 (node $2) was not spawned"
    local dir lines; dir=$(node_dir "$1" "$2") lines=$(cat "$(node_dir "$1" "$2")/extra.conf" 2>/dev/null || true)
    if [[ -e $dir/spent ]] || for_new_nodes "$lines" || ! "${KIND}_running" "$1" "$2" || ! "${KIND}_empty" "$1" "$2"; then
        reset "$1" "$2"
        return
    fi
    rm -f "$dir/extra.conf"
    plugins_in "$lines" >"$dir/idle.new"
    mv "$dir/idle.new" "$dir/idle"
    keep_the_latest "$1"
}

take_idle() { # VERSION [LINE…] → N
    local dir n lines; lines=$(printf '%s\n' "${@:2}")
    ! for_new_nodes "$lines" || return 1
    for dir in "$STATE/$1"-*; do
        [[ -e $dir/idle && $(cat "$dir/idle" 2>/dev/null) == "$(plugins_in "$lines")" ]] && rm "$dir/idle" 2>/dev/null || continue
        n=${dir##*-}
        if "${KIND}_running" "$1" "$n"; then
            echo "$n"
            return
        fi
        reset "$1" "$n" # somebody has stopped it
    done
    return 1
}

keep_the_latest() { # VERSION
    local idle dir
    { ls -t "$STATE/$1"-*/idle 2>/dev/null || true; } | tail -n +$((IDLE_NODES + 1)) | while read -r idle; do
        dir=${idle%/idle}
        ! rm "$idle" 2>/dev/null || reset "$1" "${dir##*-}"
    done
}

# Settings that outlast private_empty: of the first start of the virtual machine, and of Erlang's own applications.
for_new_nodes() { grep -qE '^(feature_flags|net_ticktime|log\.)' <<<"$1"; } # LINES

# A node is spent when something happened to it that private_empty may not undo. It is not used again.
spend() { touch "$(node_dir "$1" "$2")/spent"; } # VERSION N

# Whether private_empty undoes what rabbitmqctl does: a change of the database, or of a setting of the application `rabbit`.
is_undone() { # COMMAND [ARGUMENT…]
    local setting='application:[gs]et_env\(rabbit, ?[a-z_]+(, ?[a-z0-9_.]+)?\)[,.]? *'
    case $1 in
        list_* | add_user | set_permissions | set_user_limits | add_vhost | set_policy | set_operator_policy | set_cluster_name) ;;
        set_vm_memory_high_watermark) ;; # ends with the process that watches
        eval) [[ $2 =~ ^($setting)+$ || $2 == 'os:getpid().' ]] ;;
        *) return 1 ;;
    esac
}
