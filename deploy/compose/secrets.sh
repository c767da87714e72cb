#!/bin/sh
# Writes the passwords, the token and the certificate of compose.yaml into the
# folder secrets beside it. Existing files stay. Needs openssl.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
# The containers run as other users and must be able to read the files; on this
# machine the folder keeps other users out.
chmod 700 secrets
cd secrets
umask 022

new() { # NAME: a random text, on one line, that needs no escaping in a URL
	[ -s "$1" ] || openssl rand -hex 24 >"$1"
}
new postgres_password
new http_token
new grafana_password
[ -s store_url ] || printf 'postgres://shop:%s@postgres:5432/shop?sslmode=disable\n' "$(cat postgres_password)" >store_url

# For the host names that browsers and Prometheus use.
[ -s http_key ] && [ -s http_cert ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 825 \
	-keyout http_key -out http_cert -subj /CN=waybill \
	-addext 'subjectAltName=DNS:waybill,DNS:localhost,IP:127.0.0.1' 2>/dev/null
chmod 644 ./*
echo "secrets of compose.yaml: $PWD"
