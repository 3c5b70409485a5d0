# An instance is a set of nodes that shares nothing with any other set but the downloads. Its state directory holds,
# per node, `port`, `extra.conf` and whatever the kind of broker keeps there; sourced by `broker` and `with-brokers`.

VERSIONS=(3.10 4.0 4.3)
HOME_DIR=${RETRYRMQ_BROKER_HOME:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/retryrmq/brokers}
RUN_DIR=$HOME_DIR/run

die() { echo "${0##*/}: $*" >&2; exit "${EXIT_CODE:-1}"; }

known() { # VERSION: accepts 4.3.6 for 4.3, since that is what a test sees
    local version
    for version in "${VERSIONS[@]}"; do
        [[ ${1:-} != "$version" && ${1:-} != "$version".* ]] || { echo "$version"; return; }
    done
    die "unknown version '${1:-}': use one of ${VERSIONS[*]}"
}

open_instance() { # NAME
    [[ $1 =~ ^[A-Za-z0-9_.-]+$ ]] || die "an instance is named by letters, digits, '.', '_' and '-', not '$1'"
    INSTANCE=$1
    STATE=$RUN_DIR/$INSTANCE
}

node_dir() { echo "$STATE/$1-$2"; } # VERSION N
# What distinguishes a node from those that had its number before. Its name contains it, because the members of a cluster look for one that is gone
# by its name, and make a new node of this name theirs.
life() { cat "$(node_dir "$1" "$2")/life"; } # VERSION N
nodes() { # [VERSION]: the nodes of this instance, "VERSION N" a line
    local dir name
    for dir in "$STATE"/${1:-*}-*[0-9]; do
        [[ -d $dir ]] || continue
        name=${dir##*/}; echo "${name%-*} ${name##*-}"
    done
}

docker_answers() { command -v docker >/dev/null && timeout 20 docker info >/dev/null 2>&1; }

choose_kind() { # [docker|private]: an instance keeps the kind that it began with
    local kind=${1:-}
    [[ -n $kind || ! -e $STATE/kind ]] || kind=$(<"$STATE/kind")
    [[ -n $kind ]] || { if docker_answers; then kind=docker; elif private_possible; then kind=private; fi; }
    [[ -n $kind ]] || EXIT_CODE=3 die "no broker to be had: set RETRYRMQ_URL to a RabbitMQ with the management" \
        "plugin, start a Docker engine, or run as root on Debian (with the right to unshare), whose packages then do"
    echo "$kind"
}

# The lines of rabbitmq.conf that a node was given, without those that are no settings of the broker.
settings_of() { # DIRECTORY
    grep -v '^\(plugins\|feature_flags\) = ' "$1/extra.conf" 2>/dev/null || true
}

plugins_in() { sed -n 's/^plugins = //p' <<<"$1" | tr -s ' ' ','; } # LINES → "NAME,NAME"
plugins_of() { plugins_in "$(cat "$1/extra.conf" 2>/dev/null)"; } # DIRECTORY
has_plugin() { grep -q "^plugins = .*\\brabbitmq_$2\\b" "$1/extra.conf" 2>/dev/null; } # DIRECTORY NAME

# The feature flags that a node starts with for the first time, as a variable, if it was given a line `feature_flags = NAME…`.
feature_flags() { # DIRECTORY
    sed -n 's/^feature_flags = /RABBITMQ_FEATURE_FLAGS=/p' "$1/extra.conf" 2>/dev/null | tr -s ' ' ',' || true
}

# Lines of rabbitmq.conf for nodes of every kind.
common_settings() {
    echo "collect_statistics_interval = 1000" # a fifth of the usual, so that tests see counts sooner
    echo "handshake_timeout = 60000" # on a busy machine ten seconds may pass before a client's next frame is read
}
