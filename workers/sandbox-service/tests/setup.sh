#!/usr/bin/env bash
# The clients that the tests drive, unmodified and pinned, in an environment of their own.
set -euo pipefail
cd "$(dirname "$0")/../../.."
python3 -m venv target/sandbox-sdks
target/sandbox-sdks/bin/pip install --quiet --disable-pip-version-check --no-deps \
    --requirement workers/sandbox-service/tests/requirements.txt
