#!/usr/bin/env bash
# Builds what `make kube` runs and no package index has: Kubernetes' control plane with kubectl, etcd, KEDA's operator and
# metrics adapter, Helm. Pinned by go.mod and go.sum in tools/, from the Go module proxy for which the machine is configured.
# They go into a cache outside of the tree, ${XDG_CACHE_HOME:-~/.cache}/millrace/kube, each under a hash of what makes it:
# built once, for all trees. Prints the folder in which each has its name. Harmless when repeated.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/millrace/kube
modules=$PWD/tools
helm=$PWD/../dev/checks/helm
kubernetes=1.34.4
# What building takes while it lasts; afterwards 0.5 GB and the modules stay.
free_gb=12
version=k8s.io/component-base/version
stamps="-X $version.gitVersion=v$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=34"

say() { printf 'kube: %s\n' "$*" >&2; }

# A hash of the module $1 and of the words after it.
key_of() { { cat "$1"/go.* "$1"/*.go; printf '%s\n' "${@:2}"; } | sha256sum | cut -c 1-16; }

# want NAME MODULE PACKAGE [LINKER FLAGS]: a program that is to be there, and how it is made.
names=() folders=() packages=() flags=() keys=()
want() {
    names+=("$1") folders+=("$2") packages+=("$3") flags+=("-s -w ${4:-}")
    keys+=("$(key_of "$2" "$3" "${4:-}")")
}
want kube "$modules/controlplane" . "$stamps"
want etcd "$modules/etcd" .
want keda-operator "$modules/keda" github.com/kedacore/keda/v2/cmd/operator
want keda-adapter "$modules/keda" github.com/kedacore/keda/v2/cmd/adapter
want helm "$helm" helm.sh/helm/v3/cmd/helm
crds=$cache/keda-crds-$(key_of "$modules/keda")

# The folder of this tree's versions.
chosen=$cache/$(printf '%s\n' "${keys[@]}" "$crds" | sha256sum | cut -c 1-16)

missing() {
    local at
    for at in "${!names[@]}"; do
        [[ -x $cache/${names[at]}-${keys[at]} ]] || echo "$at"
    done
}

build() {
    local at=$1 target=$cache/${names[$1]}-${keys[$1]} start=$SECONDS
    say "building ${names[at]}; its log is $target.log"
    if ! (cd "${folders[at]}" && nice -n 10 go build -trimpath -ldflags="${flags[at]}" -o "$target.new" "${packages[at]}") \
        >"$target.log" 2>&1; then
        tail -n 20 "$target.log" >&2
        say "${names[at]} did not build: without its modules from the proxy, or out of disk? Correct that and repeat."
        exit 1
    fi
    mv "$target.new" "$target"
    say "${names[at]}: $((SECONDS - start)) s"
}

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
mapfile -t todo < <(missing)
if ((${#todo[@]})) || [[ ! -d $crds ]]; then
    if ! command -v go >/dev/null; then
        say "no Go on this machine, and ${#todo[@]} of ${#names[@]} programs are not built yet."
        say "Install Go 1.26 or newer (https://go.dev/dl) and repeat."
        exit 1
    fi
    available=$(df --output=avail --block-size=1G "$cache" | tail -n 1)
    if ((${#todo[@]} && available < free_gb)); then
        say "building takes $free_gb GB in $cache and $available GB are free: free some, or set XDG_CACHE_HOME to a larger disk."
        exit 1
    fi
    export GOFLAGS="-mod=readonly -buildvcs=false" GOCACHE=$cache/building
    for at in "${todo[@]}"; do build "$at"; done
    if [[ ! -d $crds ]]; then
        rm -rf "$crds.new"
        mkdir "$crds.new"
        cp "$(cd "$modules/keda" && go list -m -f '{{.Dir}}' github.com/kedacore/keda/v2)"/config/crd/bases/*.yaml "$crds.new"
        chmod -R u+w "$crds.new"
        mv "$crds.new" "$crds"
    fi
    # Only what is built is kept.
    rm -rf "$cache/building"
fi
mkdir -p "$chosen"
for at in "${!names[@]}"; do ln -sfn "$cache/${names[at]}-${keys[at]}" "$chosen/${names[at]}"; done
ln -sfn "$crds" "$chosen/keda-crds"
printf '%s\n' "$chosen"
