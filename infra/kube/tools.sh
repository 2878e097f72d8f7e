#!/usr/bin/env bash
# Builds what `make kube` runs and no package index has: Kubernetes' control plane with kubectl, etcd, KEDA's operator
# and metrics adapter, Helm. Pinned by go.mod and go.sum, from the Go module proxy for which the machine is configured.
# They go into a cache outside of the tree, ${XDG_CACHE_HOME:-~/.cache}/millrace/kube, each under a hash of what makes
# it: built once, for all trees. Prints the folder in which each has its name. Harmless when repeated.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace/kube
modules=$PWD/tools
helm=$PWD/../dev/checks/helm
kubernetes=1.34.4
# Needed while it builds, without the modules that Go keeps by itself; 0.5 GB stay.
free_gb=8
version=k8s.io/component-base/version
# The control plane runs for minutes and is optimised. The others hardly work: building them takes a third less so.
optimised=(-trimpath "-ldflags=-s -w -X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=34")
quick=(-trimpath "-gcflags=all=-N -l -dwarf=false" "-ldflags=-s -w")

say() { printf 'kube: %s\n' "$*" >&2; }

# The programs: name, module, package, how.
programs=(kube etcd keda-operator keda-adapter helm)
plan() {
    case $1 in
    kube) module=$modules/controlplane package=. flags=("${optimised[@]}") ;;
    etcd) module=$modules/etcd package=. flags=("${optimised[@]}") ;;
    keda-operator) module=$modules/keda package=github.com/kedacore/keda/v2/cmd/operator flags=("${quick[@]}") ;;
    keda-adapter) module=$modules/keda package=github.com/kedacore/keda/v2/cmd/adapter flags=("${quick[@]}") ;;
    helm) module=$helm package=helm.sh/helm/v3/cmd/helm flags=("${quick[@]}") ;;
    esac
    key=$({ cat "$module"/go.* "$module"/*.go; printf '%s\n' "$package" "${flags[@]}"; } | sha256sum | cut -c 1-16)
    target=$cache/$1-$key
}

build() {
    local start=$SECONDS
    plan "$1"
    say "building $1; $target.log"
    if ! (cd "$module" && nice -n 10 go build "${flags[@]}" -o "$target.new" "$package") >"$target.log" 2>&1; then
        tail -n 20 "$target.log" >&2
        say "$1 did not build: no way to the Go module proxy, or the disk is full? Correct that and repeat."
        exit 1
    fi
    mv "$target.new" "$target"
    say "$1 is built, $((SECONDS - start)) s"
}

# KEDA's custom resources, of the same version.
copy_crds() {
    local source
    source=$(cd "$modules/keda" && go list -m -f '{{.Dir}}' github.com/kedacore/keda/v2)/config/crd/bases
    rm -rf "$crds.new"
    mkdir "$crds.new"
    cp "$source"/*.yaml "$crds.new"
    chmod -R u+w "$crds.new"
    mv "$crds.new" "$crds"
}

mkdir -p "$cache"
# One at a time: another tree may build the same.
exec 9>"$cache/lock"
flock 9
missing=() keys=()
for name in "${programs[@]}"; do
    plan "$name"
    keys+=("$key")
    [[ -x $target ]] || missing+=("$name")
done
plan keda-operator
crds=$cache/keda-crds-$key
if ((${#missing[@]})) || [[ ! -d $crds ]]; then
    if ! command -v go >/dev/null; then
        say "no Go on this machine, and these are not built yet: ${missing[*]}"
        say "install Go 1.26.8 or newer (https://go.dev/dl) and repeat"
        exit 1
    fi
    available=$(df --output=avail --block-size=1G "$cache" | tail -n 1 | tr -d ' ')
    if ((available < free_gb)); then
        say "building takes $free_gb GB and $cache has $available GB"
        say "free some, or set XDG_CACHE_HOME to a folder on a larger disk, and repeat"
        exit 1
    fi
    export GOFLAGS="-mod=readonly -buildvcs=false" GOCACHE=$cache/building
    for name in "${missing[@]}"; do build "$name"; done
    [[ -d $crds ]] || copy_crds
    # Of the building only the programs are kept.
    rm -rf "$cache/building"
fi
chosen=$cache/$(printf '%s\n' "${keys[@]}" | sha256sum | cut -c 1-16)
mkdir -p "$chosen"
for name in "${programs[@]}"; do
    plan "$name"
    ln -sfn "$target" "$chosen/$name"
done
ln -sfn "$crds" "$chosen/keda-crds"
printf '%s\n' "$chosen"
