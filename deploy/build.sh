#!/bin/sh
# Builds the images of node, router and pipeline from uv.lock, tagged with the project's version, and copies what says what
# is in each into dist/ (an SBOM in CycloneDX). With a registry they are named for it, and --push uploads them.
#
#   deploy/build.sh [--registry HOST/PATH] [--push] [--tag TAG] [node] [router] [pipeline]
#
# DOCKER names the client, BUILD_ARGS has more arguments of `docker build`, such as --build-arg UV_DEFAULT_INDEX=URL or
# --build-arg EXTRAS=jwt,otel: the extras of pyproject.toml to install besides the service's own.
set -eu
cd "$(dirname "$0")/.."

say() { echo "build: $*" >&2; }
refuse() {
    say "$1"
    exit 64
}

docker=${DOCKER:-docker}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
git diff --quiet HEAD -- 2>/dev/null || revision=$revision-modified
registry='' push='' tag=$version services=''
while [ $# -gt 0 ]; do
    case $1 in
        --registry) registry=${2:?"--registry needs a value"}/ && shift ;;
        --tag) tag=${2:?"--tag needs a value"} && shift ;;
        --push) push=yes ;;
        node | router | pipeline) services="$services $1" ;;
        *) refuse "'$1' is neither an option nor a service: node, router, pipeline, --registry, --tag, --push" ;;
    esac
    shift
done
[ -n "$registry" ] || [ -z "$push" ] || refuse "--push needs --registry"

mkdir -p dist
for service in ${services:-node router pipeline}; do
    image=${registry}understudy-$service:$tag
    started=$(date +%s)
    # shellcheck disable=SC2086  # several words are meant
    "$docker" build ${BUILD_ARGS:-} --file deploy/Dockerfile --build-arg "SERVICE=$service" --build-arg "VERSION=$version" \
        --build-arg "REVISION=$revision" --tag "$image" .
    bytes=$("$docker" image inspect --format '{{.Size}}' "$image")
    say "$image: $((bytes / 1000000)) MB, $(($(date +%s) - started)) s"
    container=$("$docker" create "$image")
    "$docker" cp "$container:/opt/sbom.cdx.json" "dist/understudy-$service-$tag.cdx.json"
    "$docker" rm "$container" >/dev/null
    [ -z "$push" ] || "$docker" push "$image"
done
