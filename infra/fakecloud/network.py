"""The wires: one bridge is the cloud's network, and each machine is plugged in with its private address.

The addresses of a VPC exist only here. The cloud's own services answer at ``CLOUD`` on the same wire.
"""

import ipaddress
import itertools
import subprocess

BRIDGE = "cloud0"
# RFC 5737: addresses of nobody. AWS has its services behind names; a fake cloud has no name server.
CLOUD = "192.0.2.1"
CLOUD_NETWORK = "192.0.2.0/24"

_numbers = itertools.count(1)


def ip(*words: str) -> None:
    """Runs ``ip``; its complaint becomes the error."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"failed to run ip {' '.join(words)}: {done.stderr.strip()}")


def start() -> None:
    """Makes the bridge; of an earlier cloud in this namespace nothing stays."""
    ip("link", "set", "lo", "up")
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("address", "add", f"{CLOUD}/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


def reach(cidr: str) -> None:
    """Machines with addresses of ``cidr`` are on the bridge."""
    network = ipaddress.ip_network(cidr)
    ip("route", "replace", str(network), "dev", BRIDGE, "src", CLOUD)


def plug(pid: int) -> str:
    """A cable from the bridge into the network namespace of ``pid``, where it is called eth0. Returns its name here."""
    name = f"port{next(_numbers)}"
    ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    ip("link", "set", name, "master", BRIDGE, "up")
    return name
