#!/bin/sh
# Validators of the manifests, for `make verify`: kubeconform by the Go toolchain, checkov by Python's packages. They go into
# .cache/validators/bin. What cannot be had is left out, and its tests are skipped.
set -eu
cd "$(dirname "$0")/.."

bin=$PWD/.cache/validators/bin
mkdir -p "$bin"
[ -x "$bin/kubeconform" ] || {
    command -v go >/dev/null && GOBIN=$bin go install github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0
} || echo "== no kubeconform could be built: its tests are skipped"
[ -x "$bin/checkov" ] || {
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python .cache/checkov &&
        .venv/bin/uv pip install --quiet --python .cache/checkov checkov==3.3.30 &&
        ln -sf ../../checkov/bin/checkov "$bin/checkov"
} || echo "== no checkov could be installed: its tests are skipped"
