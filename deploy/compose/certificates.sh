#!/bin/sh
# Makes certificates for a trial: an authority, and what it signs for readers, nodes and routers of one application.
#
#     deploy/compose/certificates.sh FOLDER APPLICATION NAME...
#
# NAMEs are DNS names of nodes and routers besides localhost and 127.0.0.1. Certificates live for 30 days; those that live
# for another day are left as they are. Nobody keeps the authority's key, so nothing else can be signed by it.
set -eu

folder=$1 application=$2
shift 2
umask 077
mkdir -p "$folder"
cd "$folder"
if openssl x509 -checkend 86400 -noout -in ca.crt >/dev/null 2>&1; then
    echo "the certificates in $folder are kept"
    exit 0
fi

names=DNS:localhost,IP:127.0.0.1
for name in "$@"; do names=$names,DNS:$name; done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { "$@" 2>"$work/said" || { cat "$work/said" >&2; exit 1; }; }

# request NAME: a key, and what asks for a certificate of it.
request() {
    run openssl ecparam -name prime256v1 -genkey -noout -out "$work/$1.key"
    printf '[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=%s\n' "$1" >"$work/$1.cnf"
    run openssl req -new -key "$work/$1.key" -config "$work/$1.cnf" -out "$work/$1.csr"
}

# sign NAME OPTION...: for 30 days, with the extensions on standard input.
sign() {
    name=$1
    shift
    cat >"$work/$name.ext"
    run openssl x509 -req -in "$work/$name.csr" -days 30 -set_serial "0x$(openssl rand -hex 16)" \
        -extfile "$work/$name.ext" -out "$work/$name.crt" "$@"
}

# issue NAME SUBJECTALTNAMES
issue() {
    request "$1"
    printf 'extendedKeyUsage=serverAuth,clientAuth\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\nsubjectAltName=%s\n' "$2" |
        sign "$1" -CA "$work/ca.crt" -CAkey "$work/ca.key"
    mv "$work/$1.key" "$work/$1.crt" .
}

request ca
printf 'basicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=hash\n' |
    sign ca -signkey "$work/ca.key"
issue readers "$names"
issue node "URI:spiffe://trial.local/understudy/$application/node,$names"
issue router "URI:spiffe://trial.local/understudy/$application/router,$names"
# Last: without it all are made anew.
mv "$work/ca.crt" .
echo "certificates of $application are in $folder"
