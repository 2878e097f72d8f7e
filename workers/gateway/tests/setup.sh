#!/usr/bin/env bash
# Makes target/agents: clients and an agent that the tests drive, unmodified and pinned. Harmless when repeated. By the
# system's Python, which agents in a sandbox see. What mini-swe-agent needs for its benchmarks alone is left out. The
# hashes of requirements.txt are made by:
#
#     uv pip compile --no-deps --generate-hashes --no-header --no-emit-index-url --no-annotate --python-version 3.11 \
#         requirements.in -o requirements.txt
set -euo pipefail
cd "$(dirname "$0")/../../.."
pinned=workers/gateway/tests/requirements.txt
if cmp --silent "$pinned" target/agents/made-from.txt; then
    exit
fi
/usr/bin/python3 -m venv --clear target/agents
target/agents/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-compile \
    --requirement "$pinned"
# Agents cannot write there: what they import is compiled here, once.
MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR=target/agents/config LITELLM_LOCAL_MODEL_COST_MAP=True \
    target/agents/bin/python -c \
    'import anthropic, openai, litellm.responses.mcp.chat_completions_handler, minisweagent.agents.interactive, minisweagent.models.litellm_model, minisweagent.run.mini'
cp "$pinned" target/agents/made-from.txt
