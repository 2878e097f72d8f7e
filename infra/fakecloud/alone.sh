#!/bin/bash
# Runs a command alone: users, network, mounts and processes of its own. When it ends, however it ends, everything that
# it started ends too, because process 1 of the namespace does. Needs no rights beyond user namespaces.
set -euo pipefail
[[ $# -gt 0 ]] || { echo "usage: alone.sh COMMAND…" >&2; exit 2; }
own=(--user --map-root-user --net --mount --pid --ipc --fork --mount-proc --kill-child)
if ! why=$(unshare "${own[@]}" true 2>&1); then
    echo "this machine allows no user namespaces with a network and processes of their own: $why" >&2
    echo "remedy: sysctl kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_userns=0" >&2
    exit 3
fi
# Process 1 collects orphans, which bash does; it hands on SIGTERM and SIGINT.
exec unshare "${own[@]}" bash -c '"$@" & child=$!; trap "kill -TERM $child 2>/dev/null" TERM INT
    while true; do
        code=0; wait "$child" || code=$?
        # A wait that a signal cut short is none.
        kill -0 "$child" 2>/dev/null || exit "$code"
    done' process-1 "$@"
