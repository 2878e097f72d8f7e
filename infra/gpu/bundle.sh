#!/usr/bin/env bash
# Makes target/gpu/millrace-gpu.tar.xz: all that a bare machine with a GPU needs besides Python with torch 2.11, to prove
# there what only a GPU can show. It is unpacked anywhere and needs no network: `python3 millrace-gpu/run.py`.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'gpu: %s\n' "$*"; }

most_bytes=60000000
programs=(millrace millrace-worker millrace-sandbox millrace-agent-guard millrace-loadtest)
bundle=target/gpu/millrace-gpu
read -r tests unit_tests < <(cargo test "$@" --no-run --lib --test torch_decoder --message-format json 2>/dev/null | .venv/bin/python3 -c '
import json, sys
programs = {}
for line in sys.stdin:
    found = json.loads(line)
    if found.get("executable"):
        programs[found["target"]["name"]] = found["executable"]
print(programs["torch_decoder"], programs["millrace_torch"])
')
[[ -x $tests && -x $unit_tests ]] || { say "the tests of the engine and the trainer were not built: make build"; exit 1; }

rm -rf "$bundle"
mkdir -p "$bundle/bin"
for program in "${programs[@]}"; do
    strip -o "$bundle/bin/$program" "target/release/$program"
done
strip -o "$bundle/bin/torch-tests" "$tests"
strip -o "$bundle/bin/torch-unit-tests" "$unit_tests"
cp -L .venv/bin/nats-server "$bundle/bin/"
cp infra/gpu/{run,goals,model}.py infra/gpu/half-billion.toml broker/coordinator/runs/frozen-lake-surroundings.toml "$bundle/"
git rev-parse --short HEAD >"$bundle/commit" 2>/dev/null || echo unknown >"$bundle/commit"

archive=$bundle.tar.xz
tar --create --directory target/gpu --sort name --owner 0 --group 0 --mtime @0 millrace-gpu | xz -T0 -6 >"$archive"
bytes=$(stat --format %s "$archive")
say "$archive: $((bytes / 1000000)) MB"
((bytes <= most_bytes)) || { say "it has bytes=$bytes, more than $most_bytes"; exit 1; }
