#!/bin/sh
# Validators of the manifests, for `make verify`: kubeconform by the Go toolchain, checkov by Python's packages. They go into
# .cache/validators/bin. And generators of clients: openapi-generator by Python's packages, openapi-typescript by npm, into
# .cache/clients. And Streamlit, for an example, beside the packages of .venv: 120 MB that no developer needs. What cannot be had is left out, and its tests are skipped.
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

clients=$PWD/.cache/clients
[ -f "$clients/openapi-generator-cli.jar" ] || {
    .venv/bin/uv pip install --quiet --no-deps --target "$clients/python" openapi-generator-cli==7.26.0 &&
        ln -sf python/openapi_generator_cli/openapi-generator.jar "$clients/openapi-generator-cli.jar"
} || echo "== no openapi-generator could be installed: its tests are skipped"
[ -x "$clients/node_modules/.bin/openapi-typescript" ] || {
    command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix "$clients" \
        openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 @types/node@22
} || echo "== no openapi-typescript could be installed: its tests are skipped"

[ -d .cache/streamlit/streamlit ] || {
    .venv/bin/uv pip install --quiet --no-deps --target .cache/streamlit streamlit==1.67.0 altair==6.3.0 itsdangerous==2.2.0 \
        narwhals==2.29.0 pillow==13.0.0 pydeck==0.9.3 python-multipart==0.0.34 watchdog==7.1.0 websockets==17.4
} || echo "== no Streamlit could be installed: its test is skipped"
