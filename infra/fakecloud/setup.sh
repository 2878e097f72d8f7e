#!/usr/bin/env bash
# Makes target/fakecloud/venv from requirements.txt, as infra/dev/venv.sh says. Harmless when repeated.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

requirements=infra/fakecloud/requirements.txt
venv=target/fakecloud/venv

if venv_is_made $venv $requirements; then exit; fi
echo "fakecloud: making $venv"
mkdir -p target/fakecloud
make_venv $venv $requirements .venv/bin/python
