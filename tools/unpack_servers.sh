#!/bin/sh
# Puts the servers that some tests need into .cache, from Debian's packages. Tests skip where there is no such package.
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

unpack_prometheus
unpack_redis
