#!/bin/sh
# Compiles a server of MinIO into .cache/minio, from Go's modules. It is a program that tests run, under the AGPL, and no part of what is built here.
set -eu
cd "$(dirname "$0")/.."
if [ -x .cache/minio/minio ]; then exit 0; fi
if ! command -v go >/dev/null; then
    echo "== no Go: the tests that need MinIO are skipped"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p .cache/minio
if GOBIN="$work" GOCACHE="$work/cache" go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c 2>"$work/log"; then
    mv "$work/minio" .cache/minio/minio
else
    tail -n 5 "$work/log" >&2
    echo "== no MinIO could be compiled: its tests are skipped"
fi
