# A broker that somebody else runs, named by RETRYRMQ_URL. It is looked at and used, never started or stopped.

describe_given_broker() { # sets `brokers` and `names`
    local version management=${RETRYRMQ_MANAGEMENT_URL:-} scheme host port user
    read -r scheme user host port < <(url_parts "$RETRYRMQ_URL") || true # no URL at all: said below
    case ${scheme:-} in
        amqp) version=$(amqp_version "$host" "${port:-5672}")
            [[ -n $version ]] || EXIT_CODE=3 die "no AMQP broker answers on $host:${port:-5672} (from RETRYRMQ_URL)" ;;
        amqps) listens "$host" "${port:-5671}" || EXIT_CODE=3 die "nothing listens on $host:${port:-5671} (from RETRYRMQ_URL)" ;;
        *) EXIT_CODE=3 die "RETRYRMQ_URL must begin with amqp:// or amqps://" ;;
    esac
    if [[ -z $management && -n $(management_version "$host" 15672 "$(unescape "$user")") ]]; then
        [[ $host != *:* ]] || host="[$host]"
        management="http://$user@$host:15672"
    fi
    if [[ -z ${version:-} && -n $management ]]; then # TLS is not for a shell script
        read -r scheme user host port < <(url_parts "$management")
        version=$(management_version "$host" "${port:-15672}" "$(unescape "$user")")
    fi
    brokers="${version:-unknown}|$RETRYRMQ_URL|$management||"
    names="${version:-unknown} (RETRYRMQ_URL)"
}

url_parts() { # URL → SCHEME USER:PASSWORD HOST PORT
    [[ $1 =~ ^([a-z]+)://(([^/@]*)@)?(\[([^]]*)\]|([^:/?]*))(:([0-9]+))? ]] || return 0
    echo "${BASH_REMATCH[1]} ${BASH_REMATCH[3]:-guest:guest} ${BASH_REMATCH[5]:-${BASH_REMATCH[6]:-127.0.0.1}} ${BASH_REMATCH[8]}"
}

unescape() { printf %b "${1//%/\\x}"; }
