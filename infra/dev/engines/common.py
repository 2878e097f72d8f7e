"""What all engines' checks share: the server's process, its answers beside transformers', and what is expected."""

import abc
import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "target/models/smollm2-135m-instruct"
OUT = ROOT / "target/engines/check"
# Nats a token that two programs which compute in f32 may differ by.
F32 = 1e-4
# Seconds within which a server is up.
START = 900


def say(words):
    print(f"engines: {words}", flush=True)


def expect(holds, words):
    say(("ok: " if holds else "FAILED: ") + words)
    if not holds:
        sys.exit(1)


@dataclasses.dataclass
class Turn:
    """What a server sampled: ids, their log-probabilities, why it ended, and prompt tokens from its prefix cache."""

    tokens: list
    logprobs: list
    ended: str
    cached: int


class Server(abc.ABC):
    """An engine's server as its dialect drives it. It is killed at the end; or it runs already and is left alone."""

    # The dialect's name, and whether a reload renews an output layer that is tied to the embedding.
    dialect = ""
    renews_tied = True
    # More environment variables.
    settings = {}

    def __init__(self, command, work):
        self.process = None
        if command.startswith("http://"):
            self.port = int(command.rsplit(":", 1)[1])
            return
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        self.log = OUT / f"{self.dialect}.log"
        arguments = self.command(pathlib.Path(command).absolute())
        # Servers leave sockets and caches in the folder for temporary files.
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TMPDIR": work} | self.settings
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                arguments, env=environment, cwd=OUT, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self):
        if self.process is None:
            return self
        started = time.monotonic()
        while time.monotonic() - started < START:
            if self.process.poll() is not None:
                sys.exit(f"engines: FAILED: the server ended; see {self.log}")
            try:
                self.call("GET", "/health")
                say(f"{self.dialect} is up after {time.monotonic() - started:.0f} s")
                return self
            except OSError:
                time.sleep(1)
        sys.exit(f"engines: FAILED: the server is not up after {START} s; see {self.log}")

    def __exit__(self, *_):
        if self.process is None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=600) as reply:
            read = reply.read()
        return json.loads(read) if read else None

    @abc.abstractmethod
    def command(self, program):
        """The command line that starts it on the processor, in f32, for MODEL."""

    @abc.abstractmethod
    def sample(self, prompt, most=16, temperature=1.0, stop=()):
        """A turn after these ids, as the dialect asks for it."""

    @abc.abstractmethod
    def cut(self, prompt, most):
        """A turn that the dialect cuts after its first tokens."""

    @abc.abstractmethod
    def probe(self, tokens):
        """Log-probabilities of these ids, but the first."""

    @abc.abstractmethod
    def reload(self, folder):
        """Loads other weights, as the dialect does."""


def oracle(model, context, tokens, temperature=1.0):
    """Transformers' log-probabilities of `tokens` after `context`."""
    with torch.no_grad():
        logits = model(torch.tensor([context + tokens])).logits[0].float() / temperature
    rows = torch.log_softmax(logits[len(context) - 1 : -1], -1)
    return [row[token].item() for row, token in zip(rows, tokens, strict=True)]


def differences(a, b):
    return [abs(x - y) for x, y in zip(a, b, strict=True)]


def mean(numbers):
    return sum(numbers) / len(numbers)


def prompt(seed, length):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(10, 49_000, (length,), generator=generator).tolist()


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def write(folder, weights):
    folder.mkdir()
    for file in MODEL.iterdir():
        if file.suffix in (".json", ".jinja"):
            (folder / file.name).symlink_to(file)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def changed(weights, which):
    """All weights whose name holds `which`, moved by a little."""
    generator = torch.Generator().manual_seed(1)
    moved = {}
    for name, weight in weights.items():
        by = 2e-3 * torch.randn(weight.shape, generator=generator)
        moved[name] = weight + by if which in name else weight
    return moved
