# A throw-away authority and a server certificate per instance, so that TLS is tried against a real broker as well.

make_certificates() { # once per instance; without openssl there is simply no TLS listener
    local tls=$STATE/tls
    command -v openssl >/dev/null || return 0
    (
        flock 8
        [[ ! -e $tls/ca.pem ]] || exit 0
        rm -rf "$tls.new"; mkdir -p "$tls.new"; cd "$tls.new"
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj '/CN=retryrmq test CA' \
            -keyout ca.key -out ca.pem
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/CN=localhost' \
            -keyout server.key -out server.csr
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out server.pem \
            -extfile <(printf 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\nextendedKeyUsage=serverAuth\n')
        chmod 644 server.key # the broker reads it as another user
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/CN=retryrmq-client' \
            -keyout client.key -out client.csr
        openssl x509 -req -in client.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out client.pem \
            -extfile <(printf 'extendedKeyUsage=clientAuth\n')
        cd .. && mv "$tls.new" "$tls"
    ) 8>"$STATE/tls.lock" 2>"$STATE/tls.log" || { cat "$STATE/tls.log" >&2; die "openssl could not make the certificates"; }
}

tls_settings() { # PORT DIRECTORY-AS-THE-BROKER-SEES-IT ADDRESS
    [[ -e $STATE/tls/ca.pem ]] || return 0
    echo "listeners.ssl.1 = $3:$1"
    echo "ssl_options.cacertfile = $2/ca.pem"
    echo "ssl_options.certfile = $2/server.pem"
    echo "ssl_options.keyfile = $2/server.key"
    echo "ssl_options.verify = verify_peer" # a client may show the certificate that lies beside ours
    echo "ssl_options.fail_if_no_peer_cert = false"
}
