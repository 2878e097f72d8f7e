"""One machine for each instance: a process tree in namespaces of its own, which runs the instance's real user data.

A machine has its own root folder, network, host name, processes and process 1. It ends as a real one does: asked to
shut down, or cut off at once. Nothing of it can be left over, because its process 1 takes everything with it.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import network
from journal import log
from metadata import MetadataServer

HERE = Path(__file__).resolve().parent
# What EC2 gives an instance to shut down before it is cut off, here shorter than there.
SHUT_DOWN_S = 20.0


@dataclass
class Settings:
    """What all machines of a cloud share."""

    folder: Path
    # Variables that the image of a real machine would not have: where the fake services are.
    environment: dict[str, str] = field(default_factory=dict)
    # Folders of this computer that the image has inside, by their places there.
    image: dict[str, str] = field(default_factory=dict)
    # Networks that a machine reaches beside the cloud's services.
    networks: list[str] = field(default_factory=list)


class Machine:
    """The machine of one instance."""

    def __init__(self, settings: Settings, instance_id: str, **facts: object):
        self.settings, self.id = settings, instance_id
        self.address = str(facts["address"])
        self.zone = str(facts["zone"])
        self.type = str(facts["type"])
        self.image = str(facts.get("image", ""))
        self.user_data: bytes = facts.get("user_data") or b""
        self.group: str | None = facts.get("group")
        self.role: str | None = facts.get("role")
        self.spot = bool(facts.get("spot"))
        self.tags: Callable[[], dict[str, str]] = facts.get("tags") or dict
        self.hostname = f"ip-{self.address.replace('.', '-')}"
        self.target_state = "InService"
        self.action: dict[str, str] | None = None
        self.rebalance: str | None = None
        self.folder = settings.folder / instance_id
        self.process: subprocess.Popen | None = None
        self.metadata: MetadataServer | None = None
        self.ended = threading.Event()
        self.ending = False

    def start(self, credentials: Callable[[], dict[str, str] | None]) -> None:
        """Boots it; returns once its process 1 has the network."""
        self.folder.mkdir(parents=True)
        spec = {"hostname": self.hostname, "address": self.address, "cloud_network": network.CLOUD_NETWORK,
                "networks": self.settings.networks, "environment": self.settings.environment}
        (self.folder / "machine.json").write_text(json.dumps(spec), encoding="utf-8")
        volumes = self.settings.folder / "volumes"
        volumes.mkdir(exist_ok=True)
        mounts = [f"ro {source} {place}\n" for place, source in self.settings.image.items()]
        (self.folder / "mounts").write_text("".join([*mounts, f"rw {volumes} /run/volumes\n"]), encoding="utf-8")
        ours, theirs = socket.socketpair()
        with theirs, open(self.folder / "console.log", "ab") as console:
            own = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
            boot = [str(HERE / "machine/boot.sh"), str(self.folder / "root"), sys.base_prefix]
            self.process = subprocess.Popen(["unshare", *own, *boot], stdin=theirs, stdout=console, stderr=console,
                                            cwd=self.folder, start_new_session=True)
        threading.Thread(target=self._watch, daemon=True).start()
        ours.settimeout(60)
        try:
            if ours.recv(16) != b"up\n":
                raise RuntimeError("no process 1")
            network.plug(self.process.pid)
            ours.sendall(b"plugged\n")
            _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
            listener = socket.socket(fileno=descriptors[0])
        except (OSError, RuntimeError, IndexError) as error:
            self.cut_off()
            console = (self.folder / "console.log").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"failed to boot machine={self.id}: {error}\n{console}") from error
        finally:
            ours.close()
        self.metadata = MetadataServer(self, listener, credentials)

    def _watch(self) -> None:
        code = self.process.wait()
        log("machine ended", id=self.id, rc=code)
        if self.metadata:
            self.metadata.end()
        if not os.environ.get("FAKECLOUD_KEEP"):
            shutil.rmtree(self.folder / "root", ignore_errors=True)
        self.ended.set()

    def attach(self, volume: str, device: str) -> None:
        """The disk ``volume`` appears, under the names that a Nitro instance has for it."""
        (self.settings.folder / "volumes" / volume).mkdir(parents=True, exist_ok=True)
        root = self.folder / "root"
        for name in (Path(device).name, f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"):
            place = root / ("dev/disk/by-id" if name.startswith("nvme-Amazon") else "dev") / name
            place.parent.mkdir(parents=True, exist_ok=True)
            (root / "run/disks").mkdir(parents=True, exist_ok=True)
            (root / "run/disks" / name).symlink_to(f"/run/volumes/{volume}")
            place.touch()

    def shut_down(self) -> None:
        """The orderly end: process 1 stops the services; cut off if that takes too long. Returns at once."""
        def run() -> None:
            self._signal_init(signal.SIGTERM)
            if not self.ended.wait(SHUT_DOWN_S):
                log("machine does not shut down", id=self.id)
                self.cut_off()

        self.ending = True
        threading.Thread(target=run, daemon=True).start()

    def cut_off(self) -> None:
        """The power is gone: every process ends in the same moment."""
        self.ending = True
        if self.process and self.process.poll() is None:
            self._signal_init(signal.SIGKILL)
            self.process.kill()

    def _signal_init(self, number: int) -> None:
        """Process 1 is the child of the process that we started."""
        for pid in children().get(self.process.pid, []):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def processes(self) -> dict[int, str]:
        """The machine's processes with their names, by their numbers here."""
        family, tree = children(), [self.process.pid] if self.process else []
        for pid in tree:
            tree += family.get(pid, [])
        return {pid: name for pid in tree[1:] if (name := _name(pid))}

    def freeze(self, name: str) -> list[int]:
        """Stops the processes called ``name``, as one that hangs; nothing can make them go on but SIGKILL."""
        found = [pid for pid, own in self.processes().items() if own == name[:15]]
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        return found


def _name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return None


def children() -> dict[int, list[int]]:
    """All processes by their parents."""
    family: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            family.setdefault(int(fields[1]), []).append(int(entry.name))
    return family


def wait_ended(machines: list[Machine], patience: float) -> list[str]:
    """Waits until all have ended; the ids of those that have not."""
    give_up = time.monotonic() + patience
    return [machine.id for machine in machines if not machine.ended.wait(max(0.0, give_up - time.monotonic()))]
