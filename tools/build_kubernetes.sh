#!/bin/sh
# An API server of Kubernetes with its controllers and its etcd, for the tests of the chart. They are compiled from Go modules into
# .cache/kubernetes/bin: the first time that takes up to 4 GB of disk, and two cores a quarter of an hour. What is not there is built.
set -eu
cd "$(dirname "$0")/.."

version=v1.37.2
library=v0.${version#v1.} # the parts of Kubernetes that are modules of their own
minor=${version#v1.}
minor=${minor%.*}

mkdir -p .cache/kubernetes/bin
cd .cache/kubernetes

# Kubernetes' own go.mod finds these parts in its repository; here they are the modules of the same release.
source=$(go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/^.*"Dir": "\(.*\)",*$/\1/p')
sed -E -e 's#^module .*#module example.com/kubernetes#' -e "s#(=> )\./staging/src/(.*)#\1\2 $library#" "$source/go.mod" >go.mod
echo "require k8s.io/kubernetes $version" >>go.mod
install -m 644 "$source/go.sum" go.sum

build() {
    [ -x "bin/$1" ] || CGO_ENABLED=0 nice go build -mod=mod -trimpath -o "bin/$1" -ldflags "-s -w $says" "$2"
}
says=
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    says="$says -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
done
build etcd go.etcd.io/etcd/server/v3
build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
build kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager
