#!/bin/sh
# Builds the images of node, router and pipeline from uv.lock, tagged with the project's version, and copies what says what
# is in each into dist/ (an SBOM in CycloneDX). With a registry they are named for it, and --push uploads them: each then has
# a line in dist/images.txt, by its digest, with the file of its SBOM.
#
#   deploy/build.sh [--registry HOST/PATH] [--push] [--platform linux/amd64,linux/arm64] [--tag TAG] [node] [router] [pipeline]
#
# --platform builds one image for several architectures by docker buildx, with provenance and BuildKit's own SBOM; such an
# image lives in a registry, so it needs --push. DOCKER names the client, BUILD_ARGS has more arguments of `docker build`, such
# as --build-arg UV_DEFAULT_INDEX=URL or --build-arg EXTRAS=jwt,otel: the extras of pyproject.toml to install besides the
# service's own.
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
registry='' push='' tag=$version services='' platforms=''
while [ $# -gt 0 ]; do
    case $1 in
        --registry) registry=${2:?"--registry needs a value"}/ && shift ;;
        --tag) tag=${2:?"--tag needs a value"} && shift ;;
        --platform) platforms=${2:?"--platform needs a value"} && shift ;;
        --push) push=yes ;;
        node | router | pipeline) services="$services $1" ;;
        *) refuse "'$1' is neither an option nor a service: node, router, pipeline, --registry, --platform, --push, --tag" ;;
    esac
    shift
done
[ -n "$registry" ] || [ -z "$push" ] || refuse "--push needs --registry"
[ -n "$push" ] || [ -z "$platforms" ] || refuse "--platform needs --push: an image of several architectures lives in a registry"

# Builds "$image"; with --push, sets "$digest" to the reference by digest.
build_and_push() {
    digest='' metadata=dist/understudy-$service-$tag.metadata.json
    # shellcheck disable=SC2086  # several words are meant
    set -- ${BUILD_ARGS:-} --file deploy/Dockerfile --build-arg "SERVICE=$service" --build-arg "VERSION=$version" \
        --build-arg "REVISION=$revision" --tag "$image" .
    if [ -n "$platforms" ]; then
        "$docker" buildx build --platform "$platforms" --provenance mode=max --sbom true --metadata-file "$metadata" --push "$@"
        digest=$image@$(sed -n 's/.*"containerimage.digest": *"\([^"]*\)".*/\1/p' "$metadata" | head -n 1)
        "$docker" pull --quiet "$digest" >/dev/null
        return
    fi
    "$docker" build "$@"
    [ -n "$push" ] || return 0
    "$docker" push "$image"
    digest=$("$docker" image inspect --format '{{index .RepoDigests 0}}' "$image")
}

mkdir -p dist
: >dist/images.txt
for service in ${services:-node router pipeline}; do
    image=${registry}understudy-$service:$tag
    sbom=dist/understudy-$service-$tag.cdx.json
    started=$(date +%s)
    build_and_push
    bytes=$("$docker" image inspect --format '{{.Size}}' "${digest:-$image}")
    say "${digest:-$image}: $((bytes / 1000000)) MB, $(($(date +%s) - started)) s"
    container=$("$docker" create "${digest:-$image}")
    "$docker" cp "$container:/opt/sbom.cdx.json" "$sbom"
    "$docker" rm "$container" >/dev/null
    [ -z "$digest" ] || echo "$digest $sbom" >>dist/images.txt
done
