#!/usr/bin/env bash
# Copies what a coordinator needs to continue into a new folder: backup.sh FOLDER. The server and the user are those of
# the `nats` command (NATS_URL, NATS_NKEY, NATS_CA, or a selected context); on a guarded server it needs the operator's key.
#
# Runs may continue meanwhile. The keys come first and the log last, so the log has all that the snapshot was made of. Not
# copied are tasks, advisories and heartbeats: the leader queues all outstanding tasks when it starts.
set -euo pipefail

# A guarded server lets the operator hear its own replies only.
inbox=_INBOX_operator
streams=(KV_MILLRACE_COORDINATOR KV_MILLRACE_POLICY MILLRACE_DEAD MILLRACE_LOG)

die() { printf 'backup: %s\n' "$*" >&2; exit 1; }

[[ $# == 1 ]] || die "give one argument, the folder for the copies"
folder=$1
[[ ! -e $folder ]] || die "folder=$folder exists; give a new one"
command -v nats >/dev/null || die "no nats command on the path; infra/dev/natscli.sh builds one"

mkdir -p "$folder.part"
for stream in "${streams[@]}"; do
    nats --inbox-prefix "$inbox" stream backup --no-progress --no-consumers "$stream" "$folder.part/$stream" >/dev/null \
        || die "stream=$stream was not copied; the incomplete copy is $folder.part"
done
# A folder of this name is complete.
mv "$folder.part" "$folder"
printf 'backup: %s streams in %s\n' "${#streams[@]}" "$folder"
