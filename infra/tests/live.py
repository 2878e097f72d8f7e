"""Real processes for one test: a nats-server, coordinators and workers, in a folder of their own, on free ports.

They end with the `with` block, and with this process if it is killed."""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Waiting for any condition.
PATIENCE_S = 120


def program(name):
    """A program of Millrace or nats, or None: MILLRACE_BIN, the build, what `make setup` and `make tools` made, the path."""
    folders = [os.environ.get("MILLRACE_BIN", ""), ROOT / "target/release", ROOT / ".venv/bin", ROOT / "target/tools"]
    own = (pathlib.Path(folder, name) for folder in folders if folder)
    return next((str(path) for path in own if path.is_file()), shutil.which(name))


def needs(*names):
    """Skips a test or class where a program is missing."""
    missing = [name for name in names if program(name) is None]
    return unittest.skipIf(missing, f"not found: {', '.join(missing)}; `make programs tools` makes them")


def wait_for(what, condition):
    """The first true value of `condition`. A failed request counts as not yet."""
    end = time.monotonic() + PATIENCE_S
    last = None
    while time.monotonic() < end:
        try:
            if value := condition():
                return value
        except (OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as error:
            last = error
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {PATIENCE_S} s; last error: {last}")


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def fetch(address, path):
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as response:
        return response.read().decode()


class Process:
    """A child process with its log in a file."""

    def __init__(self, command, log, **variables):
        self.log = log
        environment = {**os.environ, "MILLRACE_LOG_FORMAT": "json", **variables}
        with log.open("ab") as file:
            self.child = subprocess.Popen(command, stdout=file, stderr=file, env=environment, preexec_fn=die_with_parent)

    def logged(self, field):
        """The last value of a field in the JSON lines of the log."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        values = [record[field] for record in map(json.loads, lines) if field in record]
        return values[-1] if values else None

    def address(self):
        """Where /metrics is."""
        wait_for(f"{self.log.name} serves", lambda: self.logged("bound") or self.child.poll() is not None)
        if self.child.poll() is not None:
            raise ConnectionError(f"{self.log.name}: the process has ended with {self.child.returncode}")
        return self.logged("bound")

    def metrics(self):
        return fetch(self.address(), "/metrics")

    def stop(self, how=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(how)
        self.child.wait(timeout=60)


class Fleet:
    """One nats-server and what is started on it."""

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="millrace-infra-"))
        (self.folder / "objects").mkdir()
        self.processes, self.starts, self.port = [], 0, -1
        self.start_nats()
        return self

    def __exit__(self, kind, *_):
        for process in self.processes:
            process.child.kill()
        for process in self.processes:
            process.child.wait()
        if kind is None:
            shutil.rmtree(self.folder)
        else:
            print(f"the logs are in {self.folder}")

    def _start(self, name, command, **variables):
        self.starts += 1
        process = Process(command, self.folder / f"{self.starts}-{name}.log", **variables)
        self.processes.append(process)
        return process

    def start_nats(self, config=None):
        """Starts nats-server, later ones at the port of the first. A configuration has a folder of its own for the streams."""
        ports = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        what = ["--config", config] if config else ["--jetstream", "--store_dir", self.folder / "streams"]
        command = [program("nats-server"), *what, "--addr", "127.0.0.1", "--port", str(self.port), "--ports_file_dir", ports]
        self.nats = self._start("nats-server", command)
        file = wait_for("nats-server has a port", lambda: next(ports.glob("*.ports"), None))
        self.url = wait_for("nats-server listens", lambda: json.loads(file.read_text())["nats"][0])
        self.port = int(self.url.rsplit(":", 1)[1])

    def coordinator(self, name="coordinator-0", binary=None):
        command = [binary or program("millrace"), "coordinator", "--id", name, *self.where()]
        return self._start(name, command)

    def worker(self, stages="generate,env_step,reward,train_shard,publish_weights", binary=None, name="worker"):
        command = [binary or program("millrace-worker"), "--stages", stages, *self.where(), "--grace", "5"]
        return self._start(name, command)

    def where(self):
        return ["--nats", self.url, "--objects", str(self.folder / "objects")]

    def millrace(self, *arguments):
        """Output of a `millrace` command that succeeds."""
        command = [program("millrace"), *arguments, *self.where()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    def status(self, run):
        return json.loads(self.millrace("status", run, "--json"))

    def submit(self, name, steps):
        """Submits runs/counter.toml, which needs no model, with another name and more steps."""
        text = (ROOT / "broker/coordinator/runs/counter.toml").read_text()
        text = text.replace('name = "counter"\nsteps = 50', f'name = "{name}"\nsteps = {steps}')
        assert f"steps = {steps}" in text
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        wait_for("the run is accepted", lambda: self.millrace("submit", str(path)))

    def script(self, path, *arguments, **variables):
        """Runs a script of infra/ as an operator would, with this fleet's server."""
        tools = os.pathsep.join([str(pathlib.Path(program("nats")).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": tools, "NATS_URL": self.url, **variables}
        return subprocess.run([ROOT / path, *map(str, arguments)], capture_output=True, text=True, env=environment,
                              timeout=120)
