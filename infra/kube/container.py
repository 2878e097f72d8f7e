"""One container of a pod: what its spec means, and its process in namespaces of its own."""

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api import Api, Refused

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "fakecloud"))
import network  # noqa: E402  pylint: disable=wrong-import-position

# The rights to a Secret follow the pod by a moment.
RIGHTS_S = 10
# What process 1 of a container is called before it becomes the command.
BEFORE = {Path(sys.executable).resolve().name, "python", "python3", "pod.sh", "env"}
KNOWN = {"name", "image", "imagePullPolicy", "command", "args", "env", "envFrom", "ports", "startupProbe", "readinessProbe",
         "livenessProbe", "resources", "securityContext", "volumeMounts", "lifecycle", "terminationMessagePath",
         "terminationMessagePolicy"}


class Unknown(Exception):
    """The spec asks for something that this kubelet does not do. It says so instead of leaving it out."""


@dataclass
class Image:
    """What stands for an image: folders of this computer, by their places in the container, and variables."""

    mounts: dict[str, Path]
    environment: dict[str, str]


def expand(text: str, known: dict[str, str]) -> str:
    """``$(NAME)``, as Kubernetes replaces it: what is not known stays."""
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda found: known.get(found[1], found[0]), text)


def field(pod: dict, path: str, address: str) -> str:
    """The downward API's fields that the chart uses."""
    meta = pod["metadata"]
    fields = {"metadata.name": meta["name"], "metadata.namespace": meta["namespace"], "status.podIP": address}
    if path not in fields:
        raise Unknown(f"fieldRef {path}")
    return fields[path]


def before_stop(spec: dict) -> list[str]:
    """The command of the preStop hook; empty if there is none."""
    hooks = spec.get("lifecycle") or {}
    if not hooks:
        return []
    if set(hooks) != {"preStop"} or set(hooks["preStop"]) != {"exec"}:
        raise Unknown(f"lifecycle {hooks}")
    return hooks["preStop"]["exec"]["command"]


class Store:
    """Reads the Secrets and ConfigMaps of a namespace."""

    def __init__(self, api: Api, namespace: str):
        self.api, self.base = api, f"/api/v1/namespaces/{namespace}"

    def _read(self, path: str) -> dict:
        give_up = time.monotonic() + RIGHTS_S
        while True:
            try:
                return self.api.ask("GET", path)
            except Refused as error:
                if time.monotonic() > give_up:
                    raise Unknown(str(error)) from error
                time.sleep(0.2)

    def claimed(self, claim: str) -> Path:
        """The folder of a claim's volume, which must be a folder of this computer."""
        name = self._read(f"{self.base}/persistentvolumeclaims/{claim}")["spec"]["volumeName"]
        spec = self._read(f"/api/v1/persistentvolumes/{name}")["spec"]
        if "hostPath" not in spec:
            raise Unknown(f"persistent volume {name} is no hostPath")
        place = Path(spec["hostPath"]["path"])
        place.mkdir(parents=True, exist_ok=True)
        return place

    def data(self, kind: str, name: str) -> dict[str, bytes]:
        found = self._read(f"{self.base}/{kind}/{name}").get("data") or {}
        decode = base64.b64decode if kind == "secrets" else str.encode
        return {key: decode(value) for key, value in found.items()}


def environment(pod: dict, spec: dict, image: Image, address: str, store: Store) -> dict[str, str]:
    """The image's variables, then envFrom, then env; each value sees those before it."""
    found = dict(image.environment)
    for source in spec.get("envFrom") or []:
        if set(source) != {"secretRef"}:
            raise Unknown(f"envFrom {sorted(source)}")
        found |= {key: value.decode() for key, value in store.data("secrets", source["secretRef"]["name"]).items()}
    for each in spec.get("env") or []:
        source = each.get("valueFrom")
        if source is None:
            found[each["name"]] = expand(each.get("value", ""), found)
        elif set(source) == {"fieldRef"}:
            found[each["name"]] = field(pod, source["fieldRef"]["fieldPath"], address)
        else:
            raise Unknown(f"valueFrom {sorted(source)}")
    return found


def volume(folder: Path, spec: dict, store: Store) -> Path:
    """A volume's folder, filled. Its content is read once: a changed Secret needs a new pod."""
    if claim := spec.get("persistentVolumeClaim"):
        return store.claimed(claim["claimName"])
    place = folder / "volumes" / spec["name"]
    place.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in spec:
        return place
    for kind, name in (("secret", "secretName"), ("configMap", "name")):
        if kind not in spec:
            continue
        data = store.data(f"{kind.lower()}s", spec[kind][name])
        items = spec[kind].get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            target = place / item["path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data[item["key"]])
            target.chmod(spec[kind].get("defaultMode", 0o644))
        return place
    raise Unknown(f"volume {sorted(set(spec) - {'name'})}")


def first_child(pid: int) -> int | None:
    """Process 1 of a container, by its number here: the child of the process that made the namespaces."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:
        return None
    return int(children[0]) if children else None


def name_of(pid: int | None) -> str:
    """A process's name; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class Container:
    """The process of one start. ``code`` is its exit code as a container has it, once it ended."""

    def __init__(self, folder: Path, spec: dict, variables: dict[str, str], mounts: list[str], facts: dict[str, str]):
        (folder / "mounts").write_text("".join(mounts), encoding="utf-8")
        (folder / "facts").write_text("".join(f"{key}='{value}'\n" for key, value in facts.items()), encoding="utf-8")
        words = [*spec.get("command", []), *spec.get("args", [])]
        if not spec.get("command"):
            raise Unknown("a container without a command: there is no image whose entrypoint it would run")
        (folder / "command").write_bytes(b"".join(expand(word, variables).encode() + b"\0" for word in words))
        (folder / "environment").write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in variables.items()))
        self.ended, self.code, self.started = threading.Event(), None, time.time()
        # How the preStop hook ended: its code, and what it complained about.
        self.variables, self.before_stop, self.hook = variables, before_stop(spec), ""
        self.process = self._start(folder)
        threading.Thread(target=self._wait, daemon=True).start()

    @staticmethod
    def _start(folder: Path) -> subprocess.Popen:
        ours, theirs = socket.socketpair()
        command = [sys.executable, HERE / "namespaces.py", HERE / "pod.sh", folder]
        with theirs, open(folder / "log", "ab") as log:
            process = subprocess.Popen(command, stdin=theirs, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        with ours:
            ours.settimeout(30)
            try:
                if ours.recv(16) != b"up\n":
                    raise OSError("the container's first program ended")
                network.plug(process.pid)
                ours.sendall(b"plugged\n")
            except (OSError, RuntimeError) as error:
                process.kill()
                process.wait()
                tail = (folder / "log").read_text(encoding="utf-8", errors="replace")[-1000:]
                raise Unknown(f"the container does not start: {error}\n{tail}") from error
        # Process 1 heeds no signal that it has no handler for, and the shell has none: it must be the command first.
        give_up = time.monotonic() + 5
        while name_of(first_child(process.pid)) in BEFORE and time.monotonic() < give_up:
            time.sleep(0.01)
        return process

    def _wait(self) -> None:
        self.code = self.process.wait()
        self.ended.set()

    def signal(self, number: int) -> None:
        """To process 1 alone, as a runtime does."""
        pid = first_child(self.process.pid)
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def stop(self, grace: float) -> bool:
        """The preStop hook, SIGTERM, SIGKILL when the grace of both is over. Whether it ended by itself."""
        give_up = time.monotonic() + grace
        if self.before_stop and grace:
            inside = ["nsenter", f"--target={first_child(self.process.pid)}", "--mount", "--uts", "--ipc", "--net", "--pid",
                      "--", "env", "-i"]
            hook = subprocess.run([*inside, *(f"{k}={v}" for k, v in self.variables.items()), *self.before_stop],
                                  check=False, timeout=grace, capture_output=True, text=True)
            self.hook = f"{hook.returncode} {hook.stderr.strip()}".strip()
        self.signal(signal.SIGTERM)
        if self.ended.wait(max(0.0, give_up - time.monotonic())):
            return True
        self.signal(signal.SIGKILL)
        self.ended.wait()
        return False
