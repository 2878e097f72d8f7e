#!/usr/bin/env python3
"""Proves on a machine with a GPU what only a GPU can show, in ten minutes and without a network.

    python3 run.py [--out DIR] [--minutes 10] [--on-cpu]

Needs torch 2.11 in this Python; with transformers in it too, sampling and training are compared with it. Ends with 0 if
every step passed, 1 if one failed, 3 if there is no GPU: then it says what is in order up to there. `--on-cpu` tries
this program itself on a machine without one, with small sizes; it proves nothing about a GPU.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
TORCH = "2.11."
NO_GPU = 3


@dataclass
class Step:
    """A command with the time that it may take."""

    name: str
    argv: list[str]
    seconds: float
    figures: Path | None = None


@dataclass
class Result:
    """What became of a step."""

    name: str
    verdict: str
    seconds: float
    log: str = ""
    figures: dict | None = field(default=None)


def say(text: str) -> None:
    print(f"gpu: {text}", flush=True)


def environment(torch_lib: Path) -> dict[str, str]:
    """Where the programs find libtorch and nats-server, whatever the machine has elsewhere."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE_", "NATS_"))}
    known = own.get("LD_LIBRARY_PATH")
    own["LD_LIBRARY_PATH"] = f"{torch_lib}:{known}" if known else str(torch_lib)
    own["PATH"] = f"{BIN}:{own.get('PATH', '/usr/bin:/bin')}"
    return own


def play(step: Step, env: dict[str, str], out: Path, deadline: float) -> Result:
    """Runs a step in a process group of its own, all of which ends with it."""
    seconds = min(step.seconds, deadline - time.monotonic())
    if seconds < 5:
        return Result(step.name, "not run: no time is left", 0.0)
    log = out / f"{step.name}.log"
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(step.argv, cwd=out, env=env, stdin=subprocess.DEVNULL, stdout=file,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(seconds)
            verdict = "passed" if code == 0 else f"failed: exit code {code}"
        except subprocess.TimeoutExpired:
            verdict = f"failed: not done after {seconds:.0f} s"
        finally:
            # What it started and left, too.
            try:
                os.killpg(process.pid, signal.SIGTERM)
                time.sleep(0.5)
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    result = Result(step.name, verdict, round(time.monotonic() - began, 1), log.name)
    if step.figures and step.figures.is_file():
        result.figures = json.loads(step.figures.read_text(encoding="utf-8"))
    elif step.figures and verdict == "passed":
        result.verdict = f"failed: it left no {step.figures.name}"
    return result


def bandwidth(torch, device: str) -> float:
    """Bytes a second that the device's memory reads and writes in a copy; the best of five."""
    count = 1 << (28 if device == "cuda" else 24)
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * 4 * count / best


def steps(args: argparse.Namespace, gpu: bool, out: Path, compared: bool) -> list[Step]:
    """In the order in which they are worth their time."""
    loadtest, millrace = str(BIN / "millrace-loadtest"), str(BIN / "millrace")
    # Members of one process would share one device, which NCCL refuses.
    tests = [str(BIN / "torch-tests"), "--test-threads", "1", "--skip", "models", *(
        ("--skip", "gang") if gpu else ("half",))]
    big = ["--sequences", "1", "--sequences", "64", "--sequences", "256", "--tokens", "128"] if gpu else [
        "--sequences", "1", "--tokens", "4", "--repeats", "1"]
    trained = ["--long", "8", "--long-tokens", "2048", "--short", "0", "--microbatch", "16384"] if gpu else [
        "--long", "1", "--long-tokens", "32", "--short", "1", "--repeats", "1"]
    rival = ["--python", sys.executable] if compared else ["--alone"]
    model = out / "half-billion"
    some = [] if gpu else ["--steps", "2"]
    half = [] if gpu else ["--steps", "1"]
    return [
        Step("tests", tests, 180),
        Step("frozen-lake", [millrace, "up", str(HERE / "frozen-lake-surroundings.toml"), "--dir", str(out / "lake"),
                             "--fresh", *some], 120, out / "lake/report.json"),
        Step("half-billion", [millrace, "up", str(HERE / "half-billion.toml"), "--dir", str(out / "half"), "--fresh",
                              *half], 150, out / "half/report.json"),
        Step("export", [millrace, "weights", "export", "half-billion", "--dir", str(out / "half"), "--to",
                        str(model)], 60),
        Step("generate", [loadtest, "bench", "generate", "--model", str(model), *rival, *big, "--out",
                          str(out / "generate.json")], 150, out / "generate.json"),
        Step("train", [loadtest, "bench", "train", "--model", str(model), *rival, *trained, "--out",
                       str(out / "train.json")], 150, out / "train.json"),
    ]


def lone_share(result: Result, weights_bytes: int, speed: float) -> str | None:
    """How near the decoding of one sequence is to what reading the weights once a token allows."""
    for row in (result.figures or {}).get("rows", []):
        if row["sequences"] == 1 and row["sides"]:
            ours = row["sides"][0]
            # Its numbers may be f32 in the file and 16 bits in the engine.
            width = 2 if ours["dtype"] in ("bfloat16", "bf16") else 4
            bound = speed / 2 / (weights_bytes / 4 * width)
            return f"{ours['tokens_per_s']:.0f} tokens/s of {bound:.0f} ({ours['tokens_per_s'] / bound:.0%})"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("millrace-gpu-report"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--on-cpu", action="store_true")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        say(f"NOT RUN: {sys.executable} has no torch; give this program a Python that has torch {TORCH}x")
        return 1
    if not torch.__version__.startswith(TORCH):
        say(f"NOT RUN: torch is {torch.__version__}; the programs are linked to {TORCH}x")
        return 1
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    env = environment(Path(torch.__file__).parent / "lib")
    starts = subprocess.run([BIN / "millrace-worker", "--version"], env=env, capture_output=True, text=True, check=False)
    if starts.returncode:
        say(f"NOT RUN: millrace-worker does not start with torch {torch.__version__}: {starts.stderr.strip()}")
        return 1
    say(f"{starts.stdout.strip()} at {(HERE / 'commit').read_text().strip()} starts with torch {torch.__version__}")
    gpu = torch.cuda.is_available()
    if not gpu and not args.on_cpu:
        say("NOT RUN: torch sees no GPU. Up to here all is in order; --on-cpu tries the rest of this program")
        return NO_GPU
    device = torch.cuda.get_device_name(0) if gpu else "CPU"
    speed = bandwidth(torch, "cuda" if gpu else "cpu")
    say(f"{device}: {speed / 1e9:.0f} GB/s")
    try:
        import transformers  # noqa: F401
        compared = True
    except ImportError:
        say("without transformers nothing is compared with it")
        compared = False
    deadline = time.monotonic() + 60 * args.minutes
    results = []
    for step in steps(args, gpu, out, compared):
        result = play(step, env, out, deadline)
        say(f"{result.name}: {result.verdict} ({result.seconds:.0f} s)")
        if result.verdict.startswith("failed"):
            tail = (out / result.log).read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
            say("\n      ".join(["its last words:", *tail]))
        results.append(result)
    weights = out / "half-billion/model.safetensors"
    alone = next((result for result in results if result.name == "generate"), None)
    share = lone_share(alone, weights.stat().st_size, speed) if alone and weights.is_file() else None
    if share:
        say(f"one sequence: {share}")
    report = {"device": device, "torch": torch.__version__, "bytes_per_s": speed, "one_sequence": share,
              "proves_a_gpu": gpu, "steps": [asdict(result) for result in results]}
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    say(f"in {out / 'report.json'}")
    return 0 if all(result.verdict == "passed" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
