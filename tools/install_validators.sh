#!/bin/sh
# Validators of the manifests, for `make verify`: kubeconform by the Go toolchain, which goes into .cache/validators/bin. Where it
# cannot be had its tests are skipped.
set -eu
cd "$(dirname "$0")/.."

bin=$PWD/.cache/validators/bin
[ -x "$bin/kubeconform" ] && exit
mkdir -p "$bin"
command -v go >/dev/null && GOBIN=$bin go install github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0 ||
    echo "== no kubeconform could be built: its tests are skipped"
