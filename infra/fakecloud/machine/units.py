"""What of systemd the fake machine has: services with environment, restart, stop timeout and kill mode.

It reads the same unit files. A directive that it does not know is ignored, as hardening is: README.md has the list.
"""

import glob
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Callable

# Signals that end a service without a fault, as systemd counts.
CLEAN = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
JOURNAL = "/var/log/journal"


def seconds(text: str) -> float:
    """A time span: 5, 90s, 2min, 1h, infinity."""
    if text == "infinity":
        return 1e9
    scale = {"": 1, "s": 1, "sec": 1, "ms": 0.001, "m": 60, "min": 60, "h": 3600}
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", text)
    if not parts or any(unit not in scale for _, unit in parts):
        raise ValueError(f"not a time span: {text!r}")
    return sum(float(number) * scale[unit] for number, unit in parts)


class UnitFile:
    """A unit file with its drop-ins: the values of each key, in order; an empty value forgets those before it."""

    def __init__(self, folder: str, name: str):
        stem, _, kind = name.rpartition(".")
        template, _, self.instance = stem.partition("@")
        at = "@" if "@" in stem else ""
        path = Path(folder, f"{template}{at}.{kind}")
        if not path.is_file():
            raise FileNotFoundError(f"Unit {name} could not be found.")
        self.values: dict[str, list[str]] = {}
        drops = glob.glob(f"{path}.d/*.conf") + glob.glob(f"{folder}/{name}.d/*.conf")
        for file in [str(path), *sorted(set(drops))]:
            self._read(Path(file).read_text(encoding="utf-8"), name)

    def _read(self, text: str, name: str) -> None:
        marks = {"%i": self.instance, "%n": name, "%H": socket.gethostname(), "%%": "%"}
        for line in re.sub(r"\\\n", " ", text).splitlines():
            key, equals, value = line.strip().partition("=")
            if not equals or key.startswith(("#", ";", "[")):
                continue
            value = re.sub("%[inH%]", lambda mark: marks[mark.group()], value.strip())
            self.values.setdefault(key, []).append(value)
            if not value:
                self.values[key] = []

    def all(self, key: str) -> list[str]:
        return self.values.get(key, [])

    def one(self, key: str, default: str) -> str:
        return (self.all(key) or [default])[-1]


def environment(unit: UnitFile, base: dict[str, str]) -> dict[str, str]:
    """Environment= and EnvironmentFile=, the latter last."""
    found = dict(base)
    for line in unit.all("Environment"):
        found.update(word.partition("=")[::2] for word in shlex.split(line))
    for path in unit.all("EnvironmentFile"):
        if path.startswith("-") and not os.path.exists(path[1:]):
            continue
        for line in Path(path.lstrip("-")).read_text(encoding="utf-8").splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith(("#", ";")):
                found[key] = "".join(shlex.split(value)) if value[:1] in "'\"" and value else value
    return found


def command(line: str, variables: dict[str, str]) -> list[str]:
    """The words of ExecStart=: ``${NAME}`` within a word, and ``$NAME`` as a word that may be several or none."""
    words: list[str] = []
    for word in shlex.split(line.lstrip("-+!:@")):
        if re.fullmatch(r"\$\w+", word):
            words += variables.get(word[1:], "").split()
        else:
            words.append(re.sub(r"\$\{(\w+)\}", lambda name: variables.get(name.group(1), ""), word))
    return words


class Service:
    """A service that was started at least once."""

    def __init__(self, units: "Units", name: str):
        self.units, self.name = units, name
        self.state, self.pid, self.restarts, self.ended = "inactive", 0, 0, None
        self.stopping = False

    def start(self) -> None:
        if self.state in ("active", "activating", "deactivating"):
            return
        self.stopping, self.state = False, "activating"
        threading.Thread(target=self._live, daemon=True).start()
        with self.units.changed:
            self.units.changed.wait_for(lambda: self.state != "activating", 90)
        if self.state == "failed":
            raise RuntimeError(f"Job for {self.name} failed.")

    def stop(self) -> None:
        """Asks it to end, and waits; kills what has not ended in time."""
        with self.units.changed:
            self.stopping = True
            if self.state not in ("active", "activating"):
                return
            self.state = "deactivating"
        file = UnitFile(self.units.folder, self.name)
        patience = seconds(file.one("TimeoutStopSec", "90s"))
        stop_signal = getattr(signal, file.one("KillSignal", "SIGTERM"))
        everyone = file.one("KillMode", "control-group") == "control-group"
        self._send(stop_signal, everyone)
        with self.units.changed:
            if not self.units.changed.wait_for(lambda: self.state in ("inactive", "failed"), patience):
                self.units.say(f"{self.name}: stop timed out after {patience:.0f} s; killed")
                self._send(signal.SIGKILL, True)
                self.units.changed.wait_for(lambda: self.state in ("inactive", "failed"))

    def _send(self, number: int, everyone: bool) -> None:
        if self.pid:
            try:
                (os.killpg if everyone else os.kill)(self.pid, number)
            except ProcessLookupError:
                pass

    def _live(self) -> None:
        """One life after another, for as long as Restart= says so."""
        while True:
            file = UnitFile(self.units.folder, self.name)
            code = self._once(file)
            fault = code != 0 and -code not in CLEAN
            restart = file.one("Restart", "no")
            again = restart == "always" or (restart == "on-failure" and fault)
            last = self.stopping or self.units.down or not again
            with self.units.changed:
                self.ended, self.pid = code, 0
                self.state = ("failed" if fault and not self.stopping else "inactive") if last else "activating"
                self.units.changed.notify_all()
            self.units.say(f"{self.name}: ended with {code}{'' if last else '; starts again'}")
            if last:
                return
            self.restarts += 1
            time.sleep(seconds(file.one("RestartSec", "100ms")))
            if self.stopping or self.units.down:
                with self.units.changed:
                    self.state = "inactive"
                    self.units.changed.notify_all()
                return

    def _once(self, file: UnitFile) -> int:
        os.makedirs(JOURNAL, exist_ok=True)
        for key, parent in (("RuntimeDirectory", "/run"), ("StateDirectory", "/var/lib")):
            for name in " ".join(file.all(key)).split():
                os.makedirs(f"{parent}/{name}", exist_ok=True)
        with open(f"{JOURNAL}/{self.name}.log", "ab") as log:
            try:
                variables = environment(file, self.units.base)
                folder = file.one("WorkingDirectory", "/")
                for line in file.all("ExecStartPre"):
                    code = self.units.run(command(line, variables), variables, log, folder)
                    if code and not line.startswith("-"):
                        return code
                pid = self.units.spawn(command(file.one("ExecStart", ""), variables), variables, log, folder)
            except (OSError, ValueError, IndexError) as error:
                self.units.say(f"{self.name}: {error}")
                return 203
            with self.units.changed:
                self.pid = pid
                if not self.stopping:
                    self.state = "active"
                self.units.changed.notify_all()
            if self.stopping:
                self._send(signal.SIGTERM, True)
            self.units.say(f"{self.name}: started, pid {pid}")
            code = self.units.wait(pid)
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            return code


class Units:
    """All services, and every process of the machine."""

    def __init__(self, folder: str, base: dict[str, str], say: Callable[[str], None]):
        self.folder, self.say = folder, say
        self.base = {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8", **base}
        self.services: dict[str, Service] = {}
        self.changed = threading.Condition()
        self.exited: dict[int, int] = {}
        self.ours: set[int] = set()
        self.down = self.finished = False

    def spawn(self, argv: list[str], env: dict[str, str], log: Any, folder: str = "/") -> int:
        with self.changed:
            process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
                                       start_new_session=True)
            process.returncode = 0  # The loop below collects it, and nobody else may.
            self.ours.add(process.pid)
            return process.pid

    def wait(self, pid: int) -> int:
        with self.changed:
            self.changed.wait_for(lambda: pid in self.exited)
            self.ours.discard(pid)
            return self.exited.pop(pid)

    def run(self, argv: list[str], env: dict[str, str], log: Any, folder: str = "/") -> int:
        return self.wait(self.spawn(argv, env, log, folder))

    def reap_until_down(self) -> None:
        while not self.finished:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if not pid:
                time.sleep(0.02)
                continue
            with self.changed:
                if pid in self.ours:
                    self.exited[pid] = os.waitstatus_to_exitcode(status)
                    self.changed.notify_all()

    def shut_down(self) -> None:
        """Stops every service side by side, as systemd does."""
        self.down = True
        self.say("shutting down")
        stops = [threading.Thread(target=service.stop) for service in list(self.services.values())]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join()
        self.finished = True

    def listen(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            while True:
                peer, _ = listener.accept()
                threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rw") as stream:
            words = json.loads(stream.readline())
            try:
                answer = self.do(words)
            except (OSError, RuntimeError, ValueError) as error:
                answer = {"rc": 1, "text": str(error)}
            stream.write(json.dumps(answer))

    def service(self, name: str) -> Service:
        name = name if "." in name else f"{name}.service"
        UnitFile(self.folder, name)
        return self.services.setdefault(name, Service(self, name))

    def do(self, words: list[str]) -> dict[str, Any]:
        """What ``systemctl`` was asked for."""
        flags = {word for word in words if word.startswith("-")}
        verb, *names = [word for word in words if word not in flags]
        services = [self.service(name) for name in names]
        if verb in ("is-active", "show", "status"):
            states = [service.state for service in services]
            return {"rc": 0 if all(state == "active" for state in states) else 3, "text": "\n".join(states)}
        for service in services:
            if verb in ("stop", "restart") or (verb == "disable" and "--now" in flags):
                service.stop()
            if verb in ("start", "restart") or (verb == "enable" and "--now" in flags):
                if "--no-block" in flags:
                    threading.Thread(target=service.start, daemon=True).start()
                else:
                    service.start()
        if verb not in ("stop", "start", "restart", "enable", "disable", "daemon-reload", "mask", "reset-failed"):
            raise ValueError(f"systemctl {verb}: this fake machine does not know it")
        return {"rc": 0, "text": ""}
