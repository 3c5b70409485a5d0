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

# The version as the management plugin tells it; nothing when it does not answer, or not to this user.
management_version() { # HOST PORT [USER:PASSWORD]
    {
        exec 3<>"/dev/tcp/$1/$2" || return 0
        printf 'GET /api/overview HTTP/1.0\r\nHost: %s\r\nAuthorization: Basic %s\r\n\r\n' "$1" \
            "$(printf %s "${3:-guest:guest}" | base64 -w0)" >&3
        timeout 5 cat <&3 | LC_ALL=C grep -aoE '"rabbitmq_version":"[0-9.]+' | LC_ALL=C grep -aoE '[0-9.]+$'
    } 2>/dev/null || true
}
