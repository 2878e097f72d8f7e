#!/usr/bin/env bash
# Clients and an agent that the tests drive, unmodified and pinned, in an environment of their own. By the system's
# Python, which agents in a sandbox see. What mini-swe-agent needs for its own benchmarks alone is left out. Harmless when
# repeated. How the hashes are made: workers/sandbox-service/tests/setup.sh.
set -euo pipefail
cd "$(dirname "$0")/../../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

requirements=workers/gateway/tests/requirements.txt
if venv_is_made target/agents $requirements; then exit; fi
make_venv target/agents $requirements /usr/bin/python3 --no-deps --no-compile
# Agents cannot write there: what they import is compiled here, once.
MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR=target/agents/config LITELLM_LOCAL_MODEL_COST_MAP=True \
    target/agents/bin/python -c \
    'import anthropic, openai, litellm.responses.mcp.chat_completions_handler, minisweagent.agents.interactive, minisweagent.models.litellm_model, minisweagent.run.mini'
