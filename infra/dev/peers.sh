#!/usr/bin/env bash
# Makes target/peers/NAME, a system that `millrace-loadtest bench peers` measures beside ours. Harmless when repeated: a
# stamp says what is made. What failed is on the last line of its output.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

say() { printf 'peers: %s\n' "$*"; }

name=${1:?name a peer: ray, celery or transferqueue}
requirements=infra/dev/peers/$name.txt
if [[ ! -f $requirements ]]; then
    say "NOT INSTALLED: there is no $requirements"
    exit 1
fi
if venv_is_made "target/peers/$name" "$requirements"; then exit; fi
find_python3_11
if [[ -z $python ]]; then
    say "NOT INSTALLED: $requirements is locked for Python 3.11, and there is none on this machine"
    exit 1
fi
if [[ $(uname -sm) != "Linux x86_64" ]]; then
    say "NOT INSTALLED: $requirements has files for Linux x86_64 only"
    exit 1
fi
mkdir -p target/peers
make_venv "target/peers/$name" "$requirements" "$python" --no-deps
