# Looks at a broker from outside with nothing but bash, because a fresh machine has neither curl nor Python.

listens() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; } # HOST PORT

# The server names its version in the first frame it sends, before any login: this needs no management plugin, no
# password and no client, and an answer proves that it is AMQP that is served.
amqp_version() { # HOST PORT → "4.3.6", or nothing
    (
        exec 3<>"/dev/tcp/$1/$2" || exit 0
        printf 'AMQP\0\0\11\1' >&3
        timeout 5 dd bs=1024 count=1 <&3
    ) 2>/dev/null | LC_ALL=C tr -cs '[:print:]' '\n' | LC_ALL=C sed -n '/^versionS$/{n;p;q}'
}

management_answers() { # HOST PORT [USER:PASSWORD]
    local status
    status=$({
        exec 3<>"/dev/tcp/$1/$2" || exit 0
        printf 'GET /api/overview HTTP/1.0\r\nHost: %s\r\nAuthorization: Basic %s\r\n\r\n' "$1" \
            "$(printf %s "${3:-guest:guest}" | base64 -w0)" >&3
        IFS= read -r -t 5 line <&3; printf %s "$line"
    } 2>/dev/null)
    [[ $status == HTTP/*\ 200* ]]
}
