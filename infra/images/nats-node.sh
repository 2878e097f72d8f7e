#!/usr/bin/env bash
# Prints the configuration of one node of a cluster: what `millrace init-auth` made, and after it what is the node's own.
# Of a setting that is given twice, nats-server takes the later one.
#
#     MILLRACE_NODE=0 MILLRACE_ADDRESS=10.0.0.10 MILLRACE_PEERS=10.0.0.10,10.0.1.10,10.0.2.10 nats-node.sh SECRETS STORE
#
# SECRETS has nats-server.conf, server.pem, server.key and ca.pem; streams are kept in STORE. The output belongs into the
# folder that SECRETS is in: nats-server includes files from there alone.
set -euo pipefail

if [[ $# != 2 ]]; then
    echo "usage: nats-node.sh SECRETS STORE" >&2
    exit 2
fi
secrets=$1 store=$2
for name in MILLRACE_NODE MILLRACE_ADDRESS MILLRACE_PEERS; do
    if [[ -z ${!name:-} ]]; then
        echo "nats-node.sh: $name is not set; /etc/millrace/instance.env of a node has it" >&2
        exit 2
    fi
done
for name in nats-server.conf server.pem server.key ca.pem; do
    if [[ ! -r $secrets/$name ]]; then
        echo "nats-node.sh: there is no $secrets/$name; the secret of the nodes has it, made by \`millrace init-auth\`" >&2
        exit 2
    fi
done
IFS=, read -ra peers <<<"$MILLRACE_PEERS"
if [[ ,$MILLRACE_PEERS, != *,$MILLRACE_ADDRESS,* ]]; then
    echo "nats-node.sh: MILLRACE_PEERS=$MILLRACE_PEERS does not name this node, MILLRACE_ADDRESS=$MILLRACE_ADDRESS" >&2
    exit 2
fi
# What the disk has for streams: what is free, and what they take already. Unset, nats-server takes three quarters of what is
# free at each start: less, the more it stores.
disk=$store
[[ -d $disk ]] || disk=$(dirname "$disk")
free=$(df --block-size=1 --output=avail "$disk" | tail -n 1)
taken=0
[[ ! -d $store ]] || taken=$(du --block-size=1 --summarize "$store" | cut -f 1)
client=${MILLRACE_CLIENT_PORT:-4222} route=${MILLRACE_ROUTE_PORT:-6222}

cat <<EOS
# Made by nats-node.sh. Users and their rights are in the first file; the rest is this node's own.
include "$(basename "$secrets")/nats-server.conf"

server_name: "nats-$MILLRACE_NODE"
listen: "$MILLRACE_ADDRESS:$client"
# For checks by this machine alone.
http: "127.0.0.1:${MILLRACE_MONITOR_PORT:-8222}"
# Clients move to the other nodes before this one stops.
lame_duck_duration: "30s"
lame_duck_grace_period: "2s"

jetstream {
  store_dir: "$store"
  # A full disk stops the server; this bound refuses writes before.
  max_file_store: $(((free + taken) * 9 / 10))
  # Three copies: an acknowledged write is in the memory of two machines, and on their disks within this time.
  sync_interval: "${MILLRACE_SYNC:-1s}"
}

tls {
  cert_file: "$secrets/server.pem"
  key_file: "$secrets/server.key"
  timeout: 5
}
EOS
if ((${#peers[@]} > 1)); then
    cat <<EOS

cluster {
  name: "millrace"
  listen: "$MILLRACE_ADDRESS:$route"
  # Both ends of a route show a certificate of our own authority.
  tls {
    cert_file: "$secrets/server.pem"
    key_file: "$secrets/server.key"
    ca_file: "$secrets/ca.pem"
    verify: true
    timeout: 5
  }
  routes: [
$(printf "    \"nats-route://%s:$route\"\n" "${peers[@]}")
  ]
}
EOS
fi
