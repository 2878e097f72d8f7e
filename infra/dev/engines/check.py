"""Drives an engine itself: its calls beside transformers, its reload, and whole runs through its dialect.

    check.py vllm|sglang PROGRAM [CHECK...]                 PROGRAM: vllm's command, or the Python that has sglang
    check.py vllm|sglang http://127.0.0.1:PORT [CHECK...]   a server that runs already, started with the same flags

Exits with 1 at the first number that is not as expected. The server is started once, on the processor, in f32.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

from common import F32, MODEL, OUT, ROOT, changed, differences, expect, load, mean, oracle, prompt, say, write
from sglang_server import Sglang
from vllm_server import Vllm

ENGINES = {"vllm": Vllm, "sglang": Sglang}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LEARNS = ROOT / "broker/coordinator/runs/smollm2-arithmetic.toml"
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


def check_sampling(server, model):
    """Token ids in, token ids and log-probabilities out, what ends a turn."""
    for temperature in (1.0, 0.7):
        off = []
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            prompts = [prompt(at, 5 + 7 * at) for at in range(8)]
            turns = list(pool.map(lambda context: server.sample(context, temperature=temperature), prompts))
        for context, turn in zip(prompts, turns, strict=True):
            off += differences(turn.logprobs, oracle(model, context, turn.tokens, temperature))
        usual, worst = mean(off), max(off)
        words = f"log-probs of {len(off)} sampled tokens, T = {temperature}: {usual:.1e} off transformers', at most {worst:.1e}"
        expect(usual < F32 / 5 and worst < F32, words)
    context = prompt(20, 30)
    greedy = server.sample(context, temperature=0.0).tokens
    stop = next(token for token in greedy if token != greedy[0])
    turn = server.sample(context, temperature=0.0, stop=[stop])
    cut = greedy[: greedy.index(stop) + 1]
    expect(turn.ended == "stop" and turn.tokens == cut, "a stop token ends a turn and is in it")
    turn = server.sample(context, most=3, temperature=0.0)
    expect(turn.ended == "length" and turn.tokens == greedy[:3], "so does the token limit")


def check_cache_and_abort(server, model):
    """A prefix cache that a reload drops, and a turn that is cut."""
    context = prompt(30, 300)
    server.sample(context, most=1)
    cached = server.sample(context, most=1).cached
    server.reload(MODEL)
    after = server.sample(context, most=1).cached
    expect(cached > 0 and after == 0, f"{cached} tokens of a prompt were cached, {after} after a reload")
    turn = server.cut(context, 200)
    count = len(turn.tokens)
    expect(turn.ended == "abort" and 0 < count < 200, f"a turn was cut after {count} of 200 tokens, as {turn.ended!r}")
    off = max(differences(turn.logprobs, oracle(model, context, turn.tokens)))
    expect(off < F32, f"its tokens are kept, with log-probs at most {off:.1e} off")


def check_reload(server, work):
    """Which part of the weights a reload leaves old."""
    base = load_file(MODEL / "model.safetensors")
    tokens = prompt(40, 32)

    def off(folder, model):
        server.reload(folder)
        return mean(differences(server.probe(tokens), oracle(model, tokens[:1], tokens[1:])))

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
    if server.renews_tied:
        expect(far < F32 < near, words)
        return
    expect(near < F32 < far, words)
    save_file({HEAD: weights[EMBEDDING].clone()}, folder / "output_layer.safetensors")
    far = off(folder, new)
    expect(far < F32, f"reloaded with the output layer as a tensor of its own: {far:.1e} off")


def up(server, work, name, file):
    """A whole run through the dialect. Returns its report and its folder."""
    place, log = OUT / name, OUT / f"{name}.log"
    settings = {
        "MILLRACE_ENGINE": "openai", "MILLRACE_ENGINE_URL": server.url, "MILLRACE_ENGINE_DIALECT": server.dialect,
        "MILLRACE_ENGINE_WEIGHTS_DIR": str(work / "versions"), "MILLRACE_ENGINE_TOLERANCE": str(F32),
    }  # fmt: skip
    command = [ROOT / "target/release/millrace", "up", file, "--dir", place, "--again"]
    with open(log, "wb") as output:
        code = subprocess.run(command, env=os.environ | settings, cwd=ROOT, stdout=output, stderr=output).returncode
    expect(code == 0, f"the run ended with {code}; its log is {log}")
    report = json.loads((place / "report.json").read_text())
    expect(report["balanced"] and report["audited"], "the run is balanced and audited")
    say(f"staleness of what was trained: {report['staleness']}")
    say(f"held out: {report['success_before']} before, {report['success_after']} after, in {report['wall_s']:.0f} s")
    return report, place


def check_run(server, work, alpha):
    """GRPO on sums, three steps. With alpha = 0 each step trains on tokens of its own version."""
    name = f"{server.dialect}-alpha-{alpha:.0f}"
    file = work / f"{name}.toml"
    file.write_text(RUN.format(model=MODEL, name=name, alpha=alpha))
    report, place = up(server, work, name, file)
    words = f"trained {report['ledger']['trained']} rollouts to v{report['final_version']}"
    expect(report["final_version"] == 3 and report["ledger"]["trained"] == 3 * 4 * 8, words)
    drifts = 0
    for manifest in sorted((place / "objects").rglob("weights/v*/manifest.json")):
        metrics = json.loads(manifest.read_text())["metrics"]
        if "sampler_trainer_drift" in metrics:
            drifts += 1
            drift, most = metrics["sampler_trainer_drift"], metrics["sampler_trainer_drift_max"]
            expect(most < F32 * 10 and drift < F32, f"{manifest.parent.name}: drift {drift:.1e}, at most {most:.1e}")
    expect(drifts >= (3 if alpha == 0 else 1), f"{drifts} steps trained on tokens of their own version")
    # Its versions take gigabytes.
    shutil.rmtree(place)


def check_learns(server, work):
    """The shipped run on sums, 40 steps: its curve rises as with the engine of this project."""
    report, place = up(server, work, f"{server.dialect}-learns", LEARNS)
    before, after = report["success_before"], report["success_after"]
    shutil.copy(place / "curve.svg", OUT / f"{server.dialect}.svg")
    expect(after > before + 0.3, f"the last version solves more held-out sums: {OUT / server.dialect}.svg")
    shutil.rmtree(place)


def main():
    name, program, only = sys.argv[1], sys.argv[2], sys.argv[3:]
    checks = {
        "sampling": lambda: check_sampling(server, load(MODEL)),
        "cache": lambda: check_cache_and_abort(server, load(MODEL)),
        "reload": lambda: check_reload(server, work),
        "fresh": lambda: check_run(server, work, 0.0),
        "run": lambda: check_run(server, work, 1.0),
        "learns": lambda: check_learns(server, work),
    }
    if unknown := [check for check in only if check not in checks]:
        sys.exit(f"engines: no check is called {unknown[0]}; there are {', '.join(checks)}")
    chosen = only or [check for check in checks if check != "learns"]
    OUT.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="millrace-engines.") as folder, ENGINES[name](program, folder) as server:
        work = pathlib.Path(folder)
        for check in chosen:
            checks[check]()
    say(f"done; NOT RUN: {', '.join(check for check in checks if check not in chosen) or 'none'}")


main()
