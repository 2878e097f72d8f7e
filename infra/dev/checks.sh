#!/usr/bin/env bash
# Makes what the checks of infra/ need: a Python environment in target/checks, and where Go is, Helm, kubeconform with
# schemas of Kubernetes and KEDA, promtool and compose-go in target/tools. Harmless when repeated: stamps say what is done.
# The first build takes about eight minutes of one processor. A tool that is missing afterwards is named by infra/test.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

own=$PWD/infra/dev/checks.sh
checks=$PWD/infra/dev/checks
tools=$PWD/target/tools
venv=$PWD/target/checks
schemas=$tools/kubeschemas

say() { printf 'checks: %s\n' "$*"; }

# Whether the stamp $1 holds the hash of the files that follow; `done_with` writes it.
hash_of() { cat "$@" | sha256sum; }
is_done() { local stamp=$1; shift; [[ -f $stamp && $(<"$stamp") == "$(hash_of "$@")" ]]; }
done_with() { local stamp=$1; shift; hash_of "$@" >"$stamp"; }

# build NAME PACKAGE [FLAG]: the package of the module infra/dev/checks/NAME, as target/tools/NAME.
build() {
    local name=$1 package=$2 flags=(-buildvcs=false -ldflags=-s "${@:3}")
    if is_done "$tools/$name.stamp" "$checks/$name/go.sum" "$own" && [[ -x $tools/$name ]]; then return; fi
    say "building $name"
    if (cd "$checks/$name" && nice go build "${flags[@]}" -o "$tools/$name" "$package") >"$tools/$name.log" 2>&1; then
        done_with "$tools/$name.stamp" "$checks/$name/go.sum" "$own"
    else
        say "$name did not build (see target/tools/$name.log)"
    fi
}

make_schemas() {
    if is_done "$schemas.stamp" "$checks/kubeschemas.py" && [[ -d $schemas ]]; then return; fi
    say "making schemas of Kubernetes and KEDA"
    if "$venv/bin/python" "$checks/kubeschemas.py" "$schemas" >"$tools/kubeschemas.log" 2>&1; then
        done_with "$schemas.stamp" "$checks/kubeschemas.py"
    else
        say "the schemas were not made (see target/tools/kubeschemas.log)"
    fi
}

mkdir -p "$tools"
venv_is_made "$venv" "$checks/requirements.txt" || say "making target/checks"
make_venv "$venv" "$checks/requirements.txt" python3
if ! command -v go >/dev/null; then
    say "no Go on this machine: Helm, kubeconform, promtool and compose-go are not built"
    exit
fi
# Service discovery is most of Prometheus; infra/prometheus needs that by DNS alone.
build promtool github.com/prometheus/prometheus/cmd/promtool -tags=remove_all_sd,enable_dns_sd
build kubeconform github.com/yannh/kubeconform/cmd/kubeconform
build helm helm.sh/helm/v3/cmd/helm
build compose .
make_schemas
