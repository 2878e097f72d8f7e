#!/usr/bin/env bash
# Makes target/tools/nats, the `nats` command, where Go is: for the tests that use it as a user would. Nothing else
# needs it. Harmless when repeated: a stamp of go.sum's hash says what is done already.
set -euo pipefail
cd "$(dirname "$0")/../.."

natscli=infra/dev/natscli
tools=$PWD/target/tools
stamp=$tools/natscli.sha256

say() { printf 'tools: %s\n' "$*"; }

wanted=$(sha256sum <$natscli/go.sum)
if [[ -x $tools/nats && -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    exit
fi
if ! command -v go >/dev/null; then
    say "no Go on this machine: the nats command is not built, and its test is skipped where there is none"
    exit
fi
say "building the nats command"
mkdir -p "$tools"
if (cd $natscli && GOBIN=$tools go install github.com/nats-io/natscli/nats) >"$tools/natscli.log" 2>&1; then
    printf '%s\n' "$wanted" >"$stamp"
else
    say "the nats command did not build (see target/tools/natscli.log); its test is skipped where there is none"
fi
