# The private kind: a version's Debian packages are extracted, not configured, into a root of their own, and a node
# runs in it under chroot, in a private mount and UTS namespace. The root is shared by all nodes and instances and is
# read-only to them; what a node writes is bound over /var/lib/rabbitmq from its state directory.

USER_ID=975

private_root() { echo "$HOME_DIR/$1"; } # VERSION
private_suite() { case $1 in 3.10) echo bookworm ;; 4.0) echo trixie ;; 4.3) echo forky ;; esac; }
private_node_name() { echo "rmq${1//./}n$2-$(life "$1" "$2")@localhost"; } # VERSION N

private_possible() {
    ((EUID == 0)) && command -v apt-get >/dev/null && [[ -e /etc/debian_version ]] &&
        unshare --mount --uts true 2>/dev/null
}

private_install() { install_whole "$1" "RabbitMQ $1" private_extract; } # VERSION

# Whole or not at all, also when two runs want it at once.
install_whole() { # NAME LABEL EXTRACT: EXTRACT NAME ROOT fills the root
    local name=$1 label=$2 extract=$3 root log; root=$(private_root "$name") log=$HOME_DIR/$name.log
    [[ ! -e $root/.installed ]] || return 0
    mkdir -p "$HOME_DIR"
    (
        flock 8
        private_prerequisites
    ) 8>"$HOME_DIR/apt.lock"
    (
        flock 8
        [[ ! -e $root/.installed ]] || exit 0
        echo "installing $label into $root" >&2
        rm -rf "$root" "$root.new"; mkdir -p "$root.new"
        "$extract" "$name" "$root.new" >"$log" 2>&1 || { tail -5 "$log" >&2; die "could not install $label; see $log"; }
        touch "$root.new/.installed"
        mv "$root.new" "$root"
    ) 8>"$HOME_DIR/$name.lock"
}

private_prerequisites() {
    local wanted=()
    command -v mmdebstrap >/dev/null || wanted+=(mmdebstrap)
    command -v openssl >/dev/null || wanted+=(openssl)
    ((${#wanted[@]})) || return 0
    echo "installing ${wanted[*]} with apt-get" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${wanted[@]}"; } \
        </dev/null >"$HOME_DIR/apt.log" 2>&1 || { tail -5 "$HOME_DIR/apt.log" >&2; die "apt-get could not install ${wanted[*]}"; }
}

private_mirror() {
    local mirror=${RETRYRMQ_DEBIAN_MIRROR:-}
    [[ -n $mirror ]] || mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -E '/debian/?$' | sort -u | head -1)
    [[ -n $mirror ]] || die "apt uses no Debian mirror here; set RETRYRMQ_DEBIAN_MIRROR to one"
    echo "$mirror"
}

private_extract() { # VERSION ROOT
    local root=$2 mirror; mirror=$(private_mirror)
    # The distribution that is still being made has a Release file that may be past its date.
    mmdebstrap --quiet --mode=root --variant=extract --components=main \
        --aptopt='Acquire::Check-Valid-Until "false"' --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        --include=rabbitmq-server,busybox,base-files,libc-bin "$(private_suite "$1")" "$root" "$mirror" </dev/null || return
    chroot "$root" /bin/busybox --install -s /bin || true # what is there already stays
    printf 'root:x:0:0::/root:/bin/sh\nrabbitmq:x:%s:%s::/var/lib/rabbitmq:/bin/sh\n' $USER_ID $USER_ID >"$root/etc/passwd"
    printf 'root:x:0:\nrabbitmq:x:%s:\n' $USER_ID >"$root/etc/group"
    printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
    mkdir -p "$root"/{proc,dev,sys,tmp,run,var/lib/rabbitmq,etc/rabbitmq}
}

# Runs a command as the broker's user inside the root, with the node's environment. Every step replaces the process,
# so that the pid of the caller's background job is the pid of the broker itself.
private_inside() { # VERSION N COMMAND…
    local version=$1 n=$2 root dir port preload=; shift 2
    root=$(private_root "$version") dir=$(node_dir "$version" "$n") port=$(node_port "$version" "$n")
    [[ $1 != rabbitmq-server || ! -e $root/preload ]] || preload=$PRELOAD
    exec setsid unshare --mount --uts bash -c '
        set -e
        root=$1 data=$2 user=$3; shift 3
        ulimit -n 65536 2>/dev/null || true
        hostname localhost
        mount --bind "$root" "$root"; mount -o remount,bind,ro "$root"
        cd /; mount --bind "$data" "$root/var/lib/rabbitmq"
        mount --bind /dev "$root/dev"; mount -t proc proc "$root/proc"; mount -t tmpfs tmpfs "$root/tmp"
        exec env -i PATH=/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/var/lib/rabbitmq LANG=C.UTF-8 \
            chroot --userspec="$user:$user" "$root" /usr/bin/env "$@"' _ "$root" "$dir/data" $USER_ID \
        ERL_EPMD_PORT="$(private_epmd_port)" ERL_EPMD_ADDRESS=127.0.0.1 \
        RABBITMQ_NODENAME="$(private_node_name "$version" "$n")" RABBITMQ_NODE_PORT="$port" \
        RABBITMQ_DIST_PORT="$(distribution_port "$port")" RABBITMQ_CONFIG_FILE=/var/lib/rabbitmq/rabbitmq.conf \
        RABBITMQ_MNESIA_BASE=/var/lib/rabbitmq/data RABBITMQ_LOG_BASE=/var/lib/rabbitmq/log \
        RABBITMQ_ENABLED_PLUGINS_FILE=/var/lib/rabbitmq/enabled_plugins \
        RABBITMQ_PLUGINS_DIR=/usr/lib/rabbitmq/plugins:/var/lib/rabbitmq/plugins RUNNING_UNDER_SYSTEMD=true \
        $(feature_flags "$dir") ${preload:+"ERL_AFLAGS=$preload"} \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}" \
        "$@"
}

private_epmd_port() { cat "$STATE/epmd.port"; }

# One epmd per instance, started by us rather than by the first broker, which would leave it behind.
private_start_epmd() { # VERSION N
    (
        flock 8
        ! process_of "$STATE/epmd.pid" >/dev/null || exit 0
        [[ -s $STATE/epmd.port ]] || epmd_port "$(node_port "$1" "$2")" >"$STATE/epmd.port"
        private_inside "$1" "$2" epmd </dev/null >"$STATE/epmd.log" 2>&1 8>&- &
        remember_process "$STATE/epmd.pid" $!
        for _ in {1..1200}; do
            ! listens 127.0.0.1 "$(private_epmd_port)" || exit 0
            sleep 0.05
        done
        cat "$STATE/epmd.log" >&2; die "epmd does not listen on port $(private_epmd_port)"
    ) 8>"$STATE/epmd.lock"
}

private_stop_epmd_when_idle() {
    local version n
    (
        flock 8
        while read -r version n; do ! private_running "$version" "$n" || exit 0; done < <(nodes)
        end_process TERM "$STATE/epmd.pid"
    ) 8>"$STATE/epmd.lock"
}

# A folder in RETRYRMQ_BROKER_DATA, if that is set.
private_make_data() { # DIRECTORY
    [[ ! -d $1/data ]] || return 0
    rm -f "$1/data" # a link to what is gone
    [[ -z ${RETRYRMQ_BROKER_DATA:-} ]] || ln -sfn "$(mktemp -d "$(realpath "$RETRYRMQ_BROKER_DATA")/retryrmq-broker.XXXXXX")" "$1/data"
}

private_write_settings() { # VERSION N
    local dir port data; dir=$(node_dir "$1" "$2") port=$(node_port "$1" "$2"); data=$dir/data
    private_make_data "$dir"
    mkdir -p "$data"/{data,log}
    {
        echo "listeners.tcp.1 = 127.0.0.1:$port"
        echo "management.tcp.ip = 127.0.0.1"
        echo "management.tcp.port = $(management_port "$port")"
        echo "log.file.level = info"
        common_settings
        echo "disk_free_limit.absolute = 200MB"
        tls_settings "$(tls_port "$port")" /var/lib/rabbitmq/tls 127.0.0.1
        ! has_plugin "$dir" mqtt || echo "mqtt.listeners.tcp.1 = 127.0.0.1:$(mqtt_port "$port")"
        ! has_plugin "$dir" stomp || echo "stomp.listeners.tcp.1 = 127.0.0.1:$(stomp_port "$port")"
        settings_of "$dir"
    } >"$data/rabbitmq.conf"
    private_write_plugins "$1" "$dir"
    rm -rf "$data/tls"; [[ ! -d $STATE/tls ]] || cp -r "$STATE/tls" "$data/tls"
    private_cookie >"$data/.cookie.new"; chmod 400 "$data/.cookie.new"; mv -f "$data/.cookie.new" "$data/.erlang.cookie"
    chown -R $USER_ID:$USER_ID "$data/"
}

# The plugins of a node: management, those of its line `plugins = NAME…`, and as files those of its version that lie in the
# folder RETRYRMQ_BROKER_PLUGINS (NAME-VERSION….ez). Of the broker's own it sees no others: it reads the schemas of all that it
# sees, which was a quarter of the processor time of its start.
private_write_plugins() { # VERSION DIRECTORY
    local data=$2/data root wanted file name links=(); root=$(private_root "$1")
    wanted=$(plugins_of "$2")
    echo "[rabbitmq_management${wanted:+,$wanted}]." >"$data/enabled_plugins"
    wanted=,rabbitmq_prelaunch,rabbitmq_web_dispatch,rabbitmq_management_agent,rabbitmq_management,$wanted,
    rm -rf "$data/plugins"; mkdir "$data/plugins"
    for file in "$root"/usr/lib/rabbitmq/lib/rabbitmq_server-*/plugins/*; do
        name=${file##*/} name=${name%-*} # the others are libraries
        [[ $name == rabbitmq_* && $wanted != *",$name,"* ]] || links+=("${file#"$root"}")
    done
    ln -s "${links[@]}" "$data/plugins"
    for file in "${RETRYRMQ_BROKER_PLUGINS:-/nowhere}"/*-"$1".*.ez; do
        [[ ! -e $file ]] || cp "$file" "$data/plugins"
    done
}

# RabbitMQ 3.10 asks each module of these applications for its attributes when it starts, and its Erlang looks for a module in all folders of
# all applications. That is 50,000 failed looks, and two fifths of the processor time of a start. The Erlang of later versions keeps lists.
PRELOADED='amqp_client|aten|cowboy|cowlib|cuttlefish|jsx|observer_cli|osiris|ra|rabbit|rabbit_common|rabbitmq_management|rabbitmq_management_agent'
PRELOADED+='|rabbitmq_prelaunch|rabbitmq_web_dispatch|ranch|recon|seshat|stdout_formatter|sysmon_handler|syslog|systemd'
PRELOADED+='|compiler|inets|kernel|mnesia|os_mon|public_key|sasl|ssl|stdlib|syntax_tools|tools|xmerl'
# Loads the modules that the file lists. It has no spaces and no quotes, because it is an option of Erlang in a variable.
PRELOAD='-eval [code:load_abs(File)||File<-element(2,file:consult(preload))].'

private_list_modules() { # VERSION: once
    local root new; root=$(private_root "$1")
    [[ $1 == 3.10 && ! -e $root/preload ]] || return 0
    new=$(mktemp "$root/preload.XXXXXX")
    (cd "$root" && find usr/lib/{erlang,rabbitmq}/lib -regextype posix-extended -regex ".*/($PRELOADED)-[0-9][^/]*/ebin/.*\.beam") |
        sed 's|\(.*\)\.beam|"/\1".|' >"$new"
    chmod 644 "$new"
    mv "$new" "$root/preload"
}

private_cookie() { # the same for all nodes of an instance, so that they can form a cluster
    (
        flock 8
        [[ -s $STATE/cookie ]] || head -c 15 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$STATE/cookie"
    ) 8>"$STATE/cookie.lock"
    cat "$STATE/cookie"
}

private_launch() { # VERSION N
    local dir; dir=$(node_dir "$1" "$2")
    ! listens 127.0.0.1 "$(node_port "$1" "$2")" || die "port $(node_port "$1" "$2") of $1 (node $2) was taken while it was down"
    private_write_settings "$1" "$2"
    private_list_modules "$1"
    private_start_epmd "$1" "$2"
    trap : INT TERM # not between these two lines, or nobody would know of the process
    private_inside "$1" "$2" rabbitmq-server </dev/null >"$dir/out.log" 2>&1 &
    remember_process "$dir/pid" $!
    trap - INT TERM
}

private_running() { process_of "$(node_dir "$1" "$2")/pid" >/dev/null; }
private_kill() { end_process KILL "$(node_dir "$1" "$2")/pid"; private_stop_epmd_when_idle; }
private_stop() { end_process TERM "$(node_dir "$1" "$2")/pid"; private_stop_epmd_when_idle; }
# What the node printed, after its own log.
private_log() { local dir; dir=$(node_dir "$1" "$2"); cat "$dir"/data/log/*@*.log "$dir/out.log" 2>/dev/null || true; }

# A node serves before it has started whole, and says that it has before the process that starts it knows. Until then a stop ends the node.
# RabbitMQ 3.10 would wait five seconds for this handler, which asks the process that waits for it.
STOP='rabbit:await_startup(), (fun Wait() -> case whereis(rabbit_boot) of undefined -> ok; _ -> timer:sleep(10), Wait() end end)(),
    gen_event:delete_handler(rabbit_event, rabbit_mgmt_db_handler, stop), rabbit:stop()'

# Ends all that a node does, and forgets its settings: RabbitMQ sets them so that they outlast their applications. Only Erlang remains, with the
# modules that it has loaded, which take four fifths of the processor time of a start.
EMPTY="$STOP"', Own = [kernel, stdlib, sasl, erts, crypto, asn1, public_key, ssl, compiler, syntax_tools, tools, xmerl, inets, runtime_tools],
    [ok = application:stop(App) || {App, _, _} <- application:which_applications(), not lists:member(App, Own)],
    [begin
        [application:unset_env(App, Key, [{persistent, true}]) || {Key, _} <- application:get_all_env(App)],
        ok = application:unload(App)
    end || {App, _, _} <- application:loaded_applications(), not lists:member(App, Own)],
    [persistent_term:erase(Cached) || Cached <- [classic_queue_consumer_unsent_message_limit, credit_flow_default_credit]],
    [garbage_collect(Process) || Process <- processes()],
    emptied'

private_empty() { # VERSION N
    [[ $(private_eval "$1" "$2" "$EMPTY") == emptied ]] && rm -rf "$(node_dir "$1" "$2")"/data/data/*
}

private_refill() { # VERSION N: starts what private_empty has ended, with the settings of now
    private_write_settings "$1" "$2"
    private_eval "$1" "$2" 'rabbit:start(), rabbit:await_startup()' >/dev/null
}

# rabbitmqctl starts a virtual machine of its own: a second of the processor's time. What tests ask for often goes by erl_call.
private_ctl() { # VERSION N COMMAND…
    local version=$1 n=$2; shift 2
    case $1 in
        eval) private_eval "$version" "$n" "$2" ;;
        stop_app) private_eval "$version" "$n" "$STOP" ;;
        start_app) private_eval "$version" "$n" 'rabbit:start()' ;;
        join_cluster)
            local module=rabbit_db_cluster:join
            [[ $version != 3.* ]] || module=rabbit_mnesia:join_cluster
            private_eval "$version" "$n" "ok = $module('$2', disc)" ;;
        set_vm_memory_high_watermark) private_eval "$version" "$n" "vm_memory_monitor:set_vm_memory_high_watermark(float($2))" ;;
        *) (private_inside "$version" "$n" rabbitmqctl --quiet "$@") ;;
    esac
}

private_erl_call() { # VERSION N EXPRESSION
    local root cookie; root=$(private_root "$1") cookie=$(private_cookie)
    # In Base64, because erl_call shows text in its own way. Of what fails, it shows only that it did.
    echo "try (fun() -> ${3%.} end)() of V -> \"ok \" ++ base64:encode_to_string(unicode:characters_to_binary(io_lib:format(\"~tp\", [V]))) catch C:R -> \"failed \" ++ base64:encode_to_string(unicode:characters_to_binary(io_lib:format(\"~tp\", [{C, R}]))) end." |
        ERL_EPMD_PORT=$(private_epmd_port) timeout 120 chroot "$root" /usr/bin/erl_call -c "$cookie" -n "$(private_node_name "$1" "$2")" -e
}

# Prints the value of an Erlang expression, as `rabbitmqctl eval` does. A busy machine may be too late for the handshake of erl_call: then the
# expression was not evaluated, and is tried again.
private_eval() { # VERSION N EXPRESSION
    local answer deadline=$((SECONDS + 60))
    until answer=$(private_erl_call "$@" 2>&1); do
        [[ $answer == *'failed to connect to node'* ]] && ((SECONDS < deadline)) || die "node $2 of $1 does not answer: $answer"
        sleep 1
    done
    case $answer in
        '{ok, "ok '*) base64 -d <<<"${answer:9:-2}"; echo ;;
        '{ok, "failed '*) die "on node $2 of $1: $(base64 -d <<<"${answer:13:-2}")" ;;
        *) die "node $2 of $1 does not understand this: $3: $answer" ;;
    esac
}
private_forget() { # VERSION N: what is not in its state directory
    local data; data=$(node_dir "$1" "$2")/data
    [[ ! -L $data ]] || rm -rf "$(readlink "$data")"
}
private_purge() { private_stop_epmd_when_idle; }
