#!/usr/bin/env bash
# Clients and an agent that the tests drive, unmodified and pinned, in an environment of their own. By the system's
# Python, which agents in a sandbox see. What mini-swe-agent needs for its own benchmarks alone is left out.
set -euo pipefail
cd "$(dirname "$0")/../../.."
/usr/bin/python3 -m venv target/agents
target/agents/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile \
    --requirement workers/gateway/tests/requirements.txt
# Agents cannot write there: what they import is compiled here, once.
MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR=target/agents/config LITELLM_LOCAL_MODEL_COST_MAP=True \
    target/agents/bin/python -c \
    'import anthropic, openai, litellm.responses.mcp.chat_completions_handler, minisweagent.agents.interactive, minisweagent.models.litellm_model, minisweagent.run.mini'
