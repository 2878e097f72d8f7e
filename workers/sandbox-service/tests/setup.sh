#!/usr/bin/env bash
# Makes target/sandbox-sdks: the clients that the tests drive, unmodified and pinned. Harmless when repeated. The hashes of
# requirements.txt are made by:
#
#     uv pip compile --no-deps --generate-hashes --no-header --no-emit-index-url --no-annotate --python-version 3.11 \
#         requirements.in -o requirements.txt
set -euo pipefail
cd "$(dirname "$0")/../../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

# Without what ROCK's own servers need.
make_venv target/sandbox-sdks workers/sandbox-service/tests/requirements.txt python3 --no-deps
