#!/usr/bin/env bash
# Makes target/envs/games and target/envs/verifiers, the packages of others whose environments are tried, and runs the
# conformance suite on them (workers/python/tests/envs). Harmless when repeated: stamps say what is done.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

say() { printf 'envs: %s\n' "$*"; }

# gem-llm takes Python 3.10 to 3.12.0, and verifiers 3.11 or newer.
find_python3_11
if [[ -z $python ]]; then
    say "NOT RUN: these packages need Python 3.11 (gem-llm takes at most 3.12.0), and there is none on this machine"
    exit 1
fi
mkdir -p target/envs
for name in games verifiers; do
    venv_is_made target/envs/$name infra/dev/envs/$name.txt || say "making target/envs/$name (half a minute, 0.5 GB)"
    # The list is whole; pip would ask for the hash of an extra again.
    make_venv target/envs/$name infra/dev/envs/$name.txt "$python" --no-deps
done
target/envs/games/bin/python workers/python/tests/envs/conformance.py
target/envs/games/bin/python workers/python/tests/envs/run.py
