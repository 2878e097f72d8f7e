"""Drives vLLM itself: its calls beside transformers, its reload, and a whole run through the vllm dialect.

    check.py VLLM_COMMAND [CHECK...]
    check.py http://127.0.0.1:PORT [CHECK...]     a server that runs already, with FLAGS and SETTINGS

Exits with 1 at the first number that is not as expected. The server is started once, on the processor, in f32.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "target/models/smollm2-135m-instruct"
OUT = ROOT / "target/engines/check"
# Nats a token that two programs which compute in f32 may differ by.
F32 = 1e-4
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FLAGS = [
    "--dtype", "float32", "--max-model-len", "512", "--enforce-eager", "--logprobs-mode", "processed_logprobs",
    "--enable-prompt-tokens-details",
]  # fmt: skip
SETTINGS = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip
RUN = """
name = "{name}"
seed = 1
steps = 3
[model]
kind = "hugging_face"
path = "{model}"
context = 64
precision = "f32"
[environment]
name = "arithmetic"
operations = ["add"]
largest = 50
system = "You are a calculator."
prompt_tokens = 48
[rollout]
groups_per_step = 4
group_size = 8
alpha = {alpha}
max_new_tokens = 12
temperature = 1.0
[algorithm]
advantage = "grpo"
loss = "ppo_clip"
old = "behaviour"
learning_rate = 2e-5
max_grad_norm = 1.0
[evaluate]
prompts = 8
temperature = 0.0
"""


def say(words):
    print(f"engines: {words}", flush=True)


def expect(holds, words):
    say(("ok: " if holds else "FAILED: ") + words)
    if not holds:
        sys.exit(1)


class Server:
    """`vllm serve`, killed at the end; or one that runs already and is left alone."""

    def __init__(self, command):
        self.process = None
        if command.startswith("http://"):
            self.port = int(command.rsplit(":", 1)[1])
            return
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        self.log = OUT / "server.log"
        arguments = [pathlib.Path(command).absolute(), "serve", MODEL, "--host", "127.0.0.1", "--port", str(self.port), *FLAGS]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                arguments, env=os.environ | SETTINGS, cwd=OUT, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self):
        if self.process is None:
            return self
        started = time.monotonic()
        while time.monotonic() - started < 900:
            if self.process.poll() is not None:
                sys.exit(f"engines: FAILED: the server ended; see {self.log}")
            try:
                self.call("GET", "/health")
                say(f"the server is up after {time.monotonic() - started:.0f} s")
                return self
            except OSError:
                time.sleep(1)
        sys.exit(f"engines: FAILED: the server is not up after 15 minutes; see {self.log}")

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

    def complete(self, prompt, **more):
        """As the dialect asks, not streamed: the first choice, and how many tokens were cached."""
        body = {
            "prompt": prompt, "max_tokens": 16, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "ignore_eos": True,
            "logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True,
        }  # fmt: skip
        reply = self.call("POST", "/v1/completions", body | more)
        return reply["choices"][0], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

    def probe(self, tokens):
        reply = self.complete(tokens, max_tokens=1, prompt_logprobs=1)[0]["prompt_logprobs"]
        return [at[str(token)]["logprob"] for at, token in zip(reply[1:], tokens[1:], strict=True)]

    def reload(self, folder):
        """As the dialect does."""
        self.call("POST", "/pause?mode=abort")
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self.call("POST", "/collective_rpc", call)
        self.call("POST", "/reset_prefix_cache")
        self.call("POST", "/resume")


def oracle(model, context, tokens):
    """Transformers' log-probabilities of `tokens` after `context`, at temperature 1."""
    with torch.no_grad():
        logits = model(torch.tensor([context + tokens])).logits[0].float()
    rows = torch.log_softmax(logits[len(context) - 1 : -1], -1)
    return [row[token].item() for row, token in zip(rows, tokens, strict=True)]


def distance(a, b):
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a)


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


def check_sampling(server, model):
    """Token ids in, token ids and log-probabilities out, what ends a turn."""
    worst, tokens = 0.0, 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        prompts = [prompt(at, 5 + 7 * at) for at in range(8)]
        replies = list(pool.map(lambda context: server.complete(context)[0], prompts))
    same = all(choice["prompt_token_ids"] == context for context, choice in zip(prompts, replies, strict=True))
    expect(same, "it sampled after the ids that were sent")
    for context, choice in zip(prompts, replies, strict=True):
        got = choice["logprobs"]["token_logprobs"]
        worst = max([worst, *(abs(a - b) for a, b in zip(got, oracle(model, context, choice["token_ids"])))])
        tokens += len(got)
    expect(worst < F32, f"log-probs of {tokens} sampled tokens, T = 1: at most {worst:.1e} off transformers'")
    context = prompt(20, 30)
    greedy = server.complete(context, temperature=0.0)[0]["token_ids"]
    stop = next(token for token in greedy if token != greedy[0])
    choice = server.complete(context, temperature=0.0, stop_token_ids=[stop])[0]
    cut = greedy[: greedy.index(stop) + 1]
    expect(choice["finish_reason"] == "stop" and choice["token_ids"] == cut, "a stop token ends a turn and is in it")
    choice = server.complete(context, temperature=0.0, max_tokens=3)[0]
    expect(choice["finish_reason"] == "length" and choice["token_ids"] == greedy[:3], "so does the token limit")


def check_cache_and_abort(server):
    """A prefix cache that a reload drops, and a turn that is cut while it is streamed."""
    context = prompt(30, 300)
    server.complete(context, max_tokens=1)
    cached = server.complete(context, max_tokens=1)[1]
    server.reload(MODEL)
    after = server.complete(context, max_tokens=1)[1]
    expect(cached > 0 and after == 0, f"{cached} tokens of a prompt were cached, {after} after a reload")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    body = {"prompt": context, "max_tokens": 200, "ignore_eos": True, "stream": True, "return_token_ids": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply, lines = connection.getresponse(), []
    while len(lines) < 3:
        if (line := reply.readline()).startswith(b"data: {"):
            lines.append(json.loads(line[6:]))
    server.call("POST", "/pause?mode=abort")
    lines += [json.loads(line[6:]) for line in reply.read().splitlines() if line.startswith(b"data: {")]
    choices = [line["choices"][0] for line in lines if line["choices"]]
    tokens = sum(len(choice["token_ids"]) for choice in choices)
    ended = choices[-1]["finish_reason"]
    server.call("POST", "/resume")
    expect(ended == "abort" and 0 < tokens < 200, f"pausing cut a turn after {tokens} of 200 tokens, as {ended!r}")


def check_reload(server, work):
    """Which part of the weights a reload leaves old, and that a file with the output layer is what it takes."""
    base = load_file(MODEL / "model.safetensors")
    tokens = prompt(40, 32)

    def off(folder, model):
        server.reload(folder)
        return distance(server.probe(tokens), oracle(model, tokens[:1], tokens[1:]))

    for which in ("self_attn", "mlp", "norm"):
        folder = write(work / which, changed(base, which))
        far = off(folder, load(folder))
        expect(far < F32, f"reloaded with other {which}: {far:.1e} off")
    weights = changed(base, "")
    folder = write(work / "all", weights)
    new, old = load(folder), load(folder)
    old.lm_head.weight = torch.nn.Parameter(base[EMBEDDING])
    far, near = off(folder, new), off(folder, old)
    words = f"reloaded with all other, output layer tied: {far:.1e} off, and {near:.1e} off one with the old output layer"
    expect(near < F32 < far, words)
    save_file({HEAD: weights[EMBEDDING].clone()}, folder / "output_layer.safetensors")
    far = off(folder, new)
    expect(far < F32, f"reloaded with the output layer as a tensor of its own: {far:.1e} off")


def check_run(server, work, name, alpha):
    """GRPO on sums, three steps, through the dialect. With alpha = 0 each step trains on tokens of its own version."""
    file, place = work / f"{name}.toml", OUT / name
    file.write_text(RUN.format(model=MODEL, name=name, alpha=alpha))
    settings = {
        "MILLRACE_ENGINE": "openai", "MILLRACE_ENGINE_URL": server.url, "MILLRACE_ENGINE_DIALECT": "vllm",
        "MILLRACE_ENGINE_WEIGHTS_DIR": str(work / "versions"), "MILLRACE_ENGINE_TOLERANCE": str(F32),
    }  # fmt: skip
    command = [ROOT / "target/release/millrace", "up", file, "--dir", place, "--again"]
    with open(OUT / f"{name}.log", "wb") as log:
        code = subprocess.run(command, env=os.environ | settings, stdout=log, stderr=log).returncode
    expect(code == 0, f"the run ended with {code}; its log is {OUT / name}.log")
    report = json.loads((place / "report.json").read_text())
    words = f"trained {report['ledger']['trained']} rollouts to v{report['final_version']} in {report['wall_s']:.0f} s"
    expect(report["final_version"] == 3 and report["ledger"]["trained"] == 3 * 4 * 8, words)
    expect(report["balanced"] and report["audited"], "the run is balanced and audited")
    say(f"staleness of what was trained: {report['staleness']}")
    drifts = 0
    for manifest in sorted((place / "objects").rglob("weights/v*/manifest.json")):
        metrics = json.loads(manifest.read_text())["metrics"]
        if "sampler_trainer_drift" in metrics:
            drifts += 1
            drift, most = metrics["sampler_trainer_drift"], metrics["sampler_trainer_drift_max"]
            expect(most < F32 * 10 and drift < F32, f"{manifest.parent.name}: drift {drift:.1e}, at most {most:.1e}")
    expect(drifts >= (3 if alpha == 0 else 1), f"{drifts} steps trained on tokens of their own version")
    say(f"held out: {report['success_before']} before, {report['success_after']} after")
    # Its versions take gigabytes.
    shutil.rmtree(place)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="millrace-engines.") as work, Server(sys.argv[1]) as server:
        work = pathlib.Path(work)
        only = sys.argv[2:]
        checks = {
            "sampling": lambda: check_sampling(server, load(MODEL)),
            "cache": lambda: check_cache_and_abort(server),
            "reload": lambda: check_reload(server, work),
            "fresh": lambda: check_run(server, work, "fresh", 0.0),
            "run": lambda: check_run(server, work, "run", 1.0),
        }
        for name, check in checks.items():
            if not only or name in only:
                check()
        if only:
            say(f"NOT RUN: {', '.join(name for name in checks if name not in only)}")
    say("done")


main()
