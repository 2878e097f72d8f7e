#!/usr/bin/env bash
# Puts the copies of backup.sh on a server that has none of these streams: restore.sh FOLDER. No coordinator and no worker
# may run meanwhile: a coordinator would create empty streams first. Options after the folder go to `nats stream restore`,
# for example --replicas 3. On a guarded server it needs the operator's key.
set -euo pipefail

die() { printf 'restore: %s\n' "$*" >&2; exit 1; }

[[ $# -ge 1 ]] || die "give the folder that backup.sh made"
folder=$1
shift
[[ -d $folder/MILLRACE_LOG ]] || die "folder=$folder has no copy of MILLRACE_LOG; give one that backup.sh made"
command -v nats >/dev/null || die "no nats command on the path; infra/dev/natscli.sh builds one"

# A guarded server lets the operator hear its own replies only.
inbox=_INBOX_operator
present=$(nats --inbox-prefix "$inbox" stream ls --names --all) || die "the server does not answer"
for copy in "$folder"/*/; do
    stream=$(basename "$copy")
    if grep -qx "$stream" <<<"$present"; then
        die "stream=$stream exists already; stop the coordinators, remove it with \`nats stream rm $stream\`, and repeat"
    fi
done
for copy in "$folder"/*/; do
    nats --inbox-prefix "$inbox" stream restore --no-progress "$@" "$copy" >/dev/null || die "the copy $copy was not restored"
done
printf 'restore: done; start the coordinators\n'
