# The Docker kind: a container per node. It is made without --rm, because a node that was killed is to be started
# again with its data, and with ports chosen by us, because a container that is started again gets other ones.

docker_image() { echo "rabbitmq:$1-management"; } # VERSION
docker_container() { echo "retryrmq-$INSTANCE-${1//./-}-$2"; } # VERSION N
docker_node_name() { echo "rabbit-$(life "$1" "$2")@$(docker_container "$1" "$2")"; }
docker_network() { echo "retryrmq-$INSTANCE"; }

docker_install() { # VERSION
    docker image inspect "$(docker_image "$1")" >/dev/null 2>&1 || docker pull --quiet "$(docker_image "$1")" >&2 ||
        die "Docker could not fetch $(docker_image "$1")"
}

docker_write_settings() { # VERSION N
    local dir; dir=$(node_dir "$1" "$2")
    {
        common_settings
        tls_settings 5671 /etc/rabbitmq/tls 0.0.0.0
        settings_of "$dir"
    } >"$dir/node.conf"
    {
        local wanted; wanted=$(plugins_of "$dir")
        echo "[rabbitmq_management${wanted:+,$wanted}]."
    } >"$dir/enabled_plugins"
    chmod 644 "$dir/enabled_plugins"
    chmod 644 "$dir/node.conf" # the broker reads it as another user
}

docker_make_network() { # one at a time: Docker makes two of the same name when asked twice at once
    (
        flock 8
        docker network inspect "$(docker_network)" >/dev/null 2>&1 || docker network create "$(docker_network)" >/dev/null
    ) 8>"$STATE/network.lock"
}

docker_launch() { # VERSION N
    local dir port container cookie more=(); dir=$(node_dir "$1" "$2") port=$(node_port "$1" "$2") container=$(docker_container "$1" "$2")
    docker_write_settings "$1" "$2"
    if docker container inspect "$container" >/dev/null 2>&1; then docker start "$container" >/dev/null; return; fi
    docker_make_network
    cookie="-setcookie retryrmq-$INSTANCE" # given on the command line, because a cookie file must belong to the image's user
    mkdir -p "$STATE/tls"
    ! has_plugin "$dir" mqtt || more+=(--publish "127.0.0.1:$(mqtt_port "$port"):1883")
    ! has_plugin "$dir" stomp || more+=(--publish "127.0.0.1:$(stomp_port "$port"):61613")
    docker run --detach --name "$container" --hostname "$container" --network "$(docker_network)" \
        --publish "127.0.0.1:$port:5672" --publish "127.0.0.1:$(tls_port "$port"):5671" \
        --publish "127.0.0.1:$(management_port "$port"):15672" "${more[@]}" \
        --env RABBITMQ_NODENAME="$(docker_node_name "$1" "$2")" \
        $(feature_flags "$dir" | sed 's/^/--env /') \
        --env RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$cookie" --env RABBITMQ_CTL_ERL_ARGS="$cookie" \
        --volume "$dir/node.conf:/etc/rabbitmq/conf.d/90-node.conf:ro" --volume "$STATE/tls:/etc/rabbitmq/tls:ro" \
        --volume "$dir/enabled_plugins:/etc/rabbitmq/enabled_plugins:ro" \
        "$(docker_image "$1")" >/dev/null
}

docker_running() { [[ $(docker container inspect --format '{{.State.Running}}' "$(docker_container "$1" "$2")" 2>/dev/null) == true ]]; }
docker_kill() { ! docker_running "$1" "$2" || docker kill --signal KILL "$(docker_container "$1" "$2")" >/dev/null; }
docker_stop() { ! docker_running "$1" "$2" || docker stop --time 60 "$(docker_container "$1" "$2")" >/dev/null; }
docker_log() { docker logs "$(docker_container "$1" "$2")" 2>&1; }
docker_ctl() { local container; container=$(docker_container "$1" "$2"); shift 2; docker exec "$container" rabbitmqctl --quiet "$@"; }
docker_forget() { docker rm --force --volumes "$(docker_container "$1" "$2")" >/dev/null 2>&1 || true; }
docker_empty() { return 1; } # the pool keeps no containers
docker_purge() { docker network rm "$(docker_network)" >/dev/null 2>&1 || true; }
