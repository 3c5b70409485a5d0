# A broker that somebody else runs, named by RETRYRMQ_URL. It is looked at and used, never started or stopped.

describe_given_broker() { # sets `brokers` and `names`
    local rest user host port management=${RETRYRMQ_MANAGEMENT_URL:-} version='' authority
    [[ $RETRYRMQ_URL =~ ^(amqps?)://(.*)$ ]] || EXIT_CODE=3 die "RETRYRMQ_URL must begin with amqp:// or amqps://"
    local scheme=${BASH_REMATCH[1]}
    authority=${BASH_REMATCH[2]%%[/?]*}
    user=guest:guest
    [[ $authority != *@* ]] || user=${authority%@*}
    rest=${authority##*@} host=${rest%:*} port=${rest##*:}
    [[ $rest == *:* && $rest != *] ]] || { host=$rest; [[ $scheme == amqp ]] && port=5672 || port=5671; }
    local address=${host#[}; address=${address%]}
    if [[ $scheme == amqp ]]; then
        version=$(amqp_version "$address" "$port")
        [[ -n $version ]] || EXIT_CODE=3 die "no AMQP broker answers on $host:$port (from RETRYRMQ_URL)"
    else
        listens "$address" "$port" || EXIT_CODE=3 die "nothing listens on $host:$port (from RETRYRMQ_URL)"
    fi
    # The escapes that a user name may have in a URL are the business of the client that is given this address.
    [[ -n $management ]] || ! listens "$address" 15672 || management="http://$user@$host:15672"
    brokers="${version:-unknown}|$RETRYRMQ_URL|$management||"
    names="${version:-unknown} (RETRYRMQ_URL)"
}
