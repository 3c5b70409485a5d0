# One server: its packages, its configuration, its process. State is $STATE/KIND-N: `port`, `mode`, `extra.conf`, `data`.

bus_port() { echo $(($1 + 10000)); }

server_install() { install_whole "$1" "$1" server_extract; } # KIND

server_extract() { # KIND ROOT
    local mirror; mirror=$(private_mirror)
    mmdebstrap --quiet --mode=root --variant=extract --components=main \
        --aptopt='Acquire::Check-Valid-Until "false"' --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        --include="$1-server,$1-tools,base-files,libc-bin" "$SUITE" "$2" "$mirror" </dev/null || return
    mkdir -p "$2"/{proc,dev,sys,tmp,run,data}
}

# Runs a command inside the root, with the data of that server as /data. Every step replaces the process, so that the pid
# of the caller's background job is the pid of the server itself.
server_inside() { # KIND N COMMAND…
    local kind=$1 n=$2 data; shift 2
    data=$(node_dir "$kind" "$n")/data
    exec setsid unshare --mount bash -c '
        set -e
        root=$1 data=$2; shift 2
        ulimit -n 65536 2>/dev/null || true
        mount --bind "$root" "$root"; mount -o remount,bind,ro "$root"
        cd /; mount --bind "$data" "$root/data"
        mount --bind /dev "$root/dev"; mount -t proc proc "$root/proc"; mount -t tmpfs tmpfs "$root/tmp"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 chroot "$root" "$@"' _ "$(private_root "$kind")" "$data" "$@"
}

server_write_settings() { # MODE KIND N
    local dir port; dir=$(node_dir "$2" "$3") port=$(node_port "$2" "$3")
    rm -rf "$dir/data/tls"; [[ ! -d $STATE/tls ]] || cp -r "$STATE/tls" "$dir/data/tls"
    # A Sentinel, and a cluster's node, write down what they learn.
    [[ $1 != sentinel || ! -e $dir/data/server.conf ]] || return 0
    {
        echo "bind 127.0.0.1"
        echo "port $port"
        echo "dir /data"
        if [[ $1 != sentinel ]]; then
            echo "appendonly yes"
            echo "appendfsync always"
            echo "save \"\""
            echo "cluster-port $(bus_port "$port")"
        fi
        if [[ -d $STATE/tls ]]; then
            echo "tls-port $(tls_port "$port")"
            echo "tls-ca-cert-file /data/tls/ca.pem"
            echo "tls-cert-file /data/tls/server.pem"
            echo "tls-key-file /data/tls/server.key"
            echo "tls-auth-clients optional"
        fi
        cat "$dir/extra.conf" 2>/dev/null || true
    } >"$dir/data/server.conf"
}

server_start() { # start|sentinel|"" KIND N [LINE…]: "" is as it was before
    local mode=$1 kind=$2 n=$3 dir; dir=$(node_dir "$kind" "$n"); shift 3
    mode=${mode:-$(<"$dir/mode")}
    ! process_of "$dir/pid" >/dev/null || return 0
    purge_orphans
    server_install "$kind"
    claim_for_owner
    mkdir -p "$dir/data"
    echo "$mode" >"$dir/mode"
    ((!$#)) || printf '%s\n' "$@" >"$dir/extra.conf"
    claim_ports "$kind" "$n"
    server_write_settings "$mode" "$kind" "$n"
    local flag=(); [[ $mode != sentinel ]] || flag=(--sentinel)
    trap : INT TERM # not between these two lines, or nobody would know of the process
    server_inside "$kind" "$n" "$kind-server" /data/server.conf "${flag[@]}" </dev/null >>"$dir/out.log" 2>&1 &
    remember_process "$dir/pid" $!
    trap - INT TERM
    local deadline=$((SECONDS + 60))
    until listens 127.0.0.1 "$(node_port "$kind" "$n")"; do
        process_of "$dir/pid" >/dev/null || { tail -5 "$dir/out.log" >&2; die "$kind (server $n) ended while starting"; }
        ((SECONDS < deadline)) || { tail -5 "$dir/out.log" >&2; die "$kind (server $n) does not answer after 60 s"; }
        sleep 0.02
    done
}

server_reset() { # KIND N
    local dir; dir=$(node_dir "$1" "$2")
    end_process KILL "$dir/pid"
    rm -rf "$dir"
}

server_cli() { # KIND N ARGS…
    local kind=$1 n=$2; shift 2
    (server_inside "$kind" "$n" "$kind-cli" -h 127.0.0.1 -p "$(node_port "$kind" "$n")" "$@")
}

server_url() { # KIND N
    local port; port=$(node_port "$1" "$2")
    echo "127.0.0.1:$port"
    [[ ! -d $STATE/tls ]] || echo "127.0.0.1:$(tls_port "$port")"
}

server_cluster() { # KIND
    local n addresses=() deadline=$((SECONDS + 60))
    for n in "${CLUSTER_NODES[@]}"; do
        server_start start "$1" "$n" "cluster-enabled yes" "cluster-node-timeout 5000" "cluster-config-file nodes.conf" \
            "repl-diskless-sync-delay 0" "repl-ping-replica-period 1"
        addresses+=("$(server_url "$1" "$n" | head -1)")
    done
    server_cli "$1" "${CLUSTER_NODES[0]}" --cluster create "${addresses[@]}" --cluster-replicas 1 --cluster-yes >/dev/null
    for n in "${CLUSTER_NODES[@]}"; do
        until server_cli "$1" "$n" cluster info | grep >/dev/null '^cluster_state:ok'; do
            ((SECONDS < deadline)) || die "the cluster of $1 does not come up"
            sleep 0.1
        done
    done
}
