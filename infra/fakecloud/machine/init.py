"""Process 1 of a fake machine: network, first boot with the real user data, units, orderly shutdown.

Standard input is a socket to the cloud. The cloud says when the cable is plugged in; this process hands it the socket
on which the machine's metadata service listens.
"""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from units import Units

METADATA = "169.254.169.254"
with open("/opt/fakecloud/machine.json", encoding="utf-8") as file:
    SPEC = json.load(file)


def say(text: str) -> None:
    """A line of the console, with the time since 1970."""
    print(f"{time.time():.3f} {text}", flush=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def network(cloud: socket.socket) -> None:
    """Waits for the cable and takes the private address; the metadata service is at its usual address."""
    cloud.sendall(b"up\n")
    if cloud.recv(16) != b"plugged\n":
        sys.exit("the cloud did not plug the machine in")
    socket.sethostname(SPEC["hostname"])
    ip("link", "set", "lo", "up")
    ip("address", "add", f"{METADATA}/32", "dev", "lo")
    ip("address", "add", f"{SPEC['address']}/32", "dev", "eth0")
    ip("link", "set", "eth0", "up")
    for destination in [SPEC["cloud_network"], *SPEC["networks"]]:
        ip("route", "add", destination, "dev", "eth0", "src", SPEC["address"])
    listener = socket.create_server((METADATA, 80), backlog=64)
    socket.send_fds(cloud, [b"metadata\n"], [listener.fileno()])
    listener.close()


def metadata(path: str) -> bytes | None:
    """As cloud-init asks: with a token."""
    base = f"http://{METADATA}/latest"
    ask = urllib.request.Request(f"{base}/api/token", method="PUT")
    ask.add_header("X-aws-ec2-metadata-token-ttl-seconds", "60")
    with urllib.request.urlopen(ask, timeout=10) as answer:
        token = answer.read().decode()
    ask = urllib.request.Request(f"{base}/{path}", headers={"X-aws-ec2-metadata-token": token})
    try:
        with urllib.request.urlopen(ask, timeout=10) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def first_boot(units: Units) -> None:
    """Runs the user data as cloud-init does: a script, once, as root."""
    data = metadata("user-data") or b""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if not data.startswith(b"#!"):
        say("user data: none" if not data else f"user data of an unknown kind: {data[:40]!r}")
        return
    path = "/var/lib/cloud/instance/scripts/part-001"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as script:
        script.write(data)
    os.chmod(path, 0o700)
    with open("/var/log/cloud-init-output.log", "ab") as log:
        started = time.monotonic()
        code = units.run([path], dict(os.environ, **SPEC["environment"]), log)
    say(f"user data ended with {code} after {time.monotonic() - started:.1f} s")


def main() -> None:
    cloud = socket.socket(fileno=0)
    network(cloud)
    units = Units("/etc/systemd/system", SPEC["environment"], say)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=units.shut_down, daemon=True).start())
    units.listen("/run/fakecloud-systemd.sock")
    threading.Thread(target=first_boot, args=(units,), daemon=True).start()
    say("up")
    # Process 1 inherits every orphan and must collect it.
    units.reap_until_down()
    say("down")


main()
