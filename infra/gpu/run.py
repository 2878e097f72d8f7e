#!/usr/bin/env python3
"""Proves on a machine with a GPU what only a GPU can show, in ten minutes and without a network.

    python3 run.py [--out DIR] [--minutes 10] [--on-cpu] [--only STEP …]

Needs torch 2.11 in this Python; with transformers in it too, sampling and training are compared with it. Ends with 0 if
every step passed, 1 if one failed, 3 if there is no GPU: then it says what is in order up to there. A goal that is missed
fails nothing. `--on-cpu` tries this program itself on a machine without one, with small sizes; it proves nothing about a
GPU.
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

import goals

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
TORCH = "2.11."
NO_GPU = 3
# Tests of what only CUDA runs.
OF_CUDA = ["gpu_steps", "one_pass"]
# They ask the Python of a checkout, which a bare machine does not have.
NEED_A_CHECKOUT = ["models", "a_step_in_bf16_is_that_of_a_plain_loop"]


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
    figures: object = field(default=None)


def say(text: str) -> None:
    print(f"gpu: {text}", flush=True)


def environment(torch_lib: Path) -> dict[str, str]:
    """Where the programs find libtorch and nats-server, whatever the machine has elsewhere."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MILLRACE_", "NATS_"))}
    known = own.get("LD_LIBRARY_PATH")
    own["LD_LIBRARY_PATH"] = f"{torch_lib}:{known}" if known else str(torch_lib)
    own["PATH"] = f"{BIN}:{own.get('PATH', '/usr/bin:/bin')}"
    return own


def end(process: subprocess.Popen) -> None:
    """Ends a process with all that it started and left."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def play(step: Step, env: dict[str, str], out: Path, deadline: float) -> Result:
    """Runs a step in a process group of its own, all of which ends with it. Figures of an earlier run are no figures."""
    seconds = min(step.seconds, deadline - time.monotonic())
    if seconds < 5:
        return Result(step.name, "not run: no time is left", 0.0)
    if step.figures:
        step.figures.unlink(missing_ok=True)
    log = out / f"{step.name}.log"
    began = time.monotonic()
    with log.open("wb") as file:
        try:
            process = subprocess.Popen(step.argv, cwd=out, env=env, stdin=subprocess.DEVNULL, stdout=file,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        except OSError as error:
            return Result(step.name, f"failed: {error}", 0.0, log.name)
        try:
            code = process.wait(seconds)
            verdict = "passed" if code == 0 else f"failed: exit code {code}"
        except subprocess.TimeoutExpired:
            verdict = f"failed: not done after {seconds:.0f} s"
        finally:
            end(process)
    result = Result(step.name, verdict, round(time.monotonic() - began, 1), log.name)
    if step.figures and step.figures.is_file():
        result.figures = goals.parse(step.figures.read_text(encoding="utf-8", errors="replace"))
    if step.figures and result.figures is None and verdict == "passed":
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


def tests(gpu: bool) -> list[Step]:
    """Those of what only CUDA runs come first: where they fail, the figures are of something else."""
    program = [str(BIN / "torch-tests"), "--test-threads", "1"]
    kernels = Step("tests-kernels", [str(BIN / "torch-unit-tests"), "--test-threads", "1"], 30)
    if not gpu:
        return [kernels, Step("tests-cuda", [*program, *OF_CUDA], 70), Step("tests", [*program, "half", "sharing"], 80)]
    # Members of one process would share one device, which NCCL refuses.
    left_out = ["gang", *NEED_A_CHECKOUT, *OF_CUDA]
    skipped = [word for name in left_out for word in ("--skip", name)]
    return [kernels, Step("tests-cuda", [*program, *OF_CUDA], 70), Step("tests", [*program, *skipped], 80)]


def benches(gpu: bool, out: Path, compared: bool) -> list[Step]:
    """Sampling and training, at the model that the step `model` makes."""
    loadtest, model = str(BIN / "millrace-loadtest"), str(out / "model")
    rival = ["--python", sys.executable] if compared else ["--alone"]
    sampled = ["--sequences", "1,16,64,256", "--tokens", "128", "--repeats", "2"] if gpu else [
        "--sequences", "1,64", "--tokens", "8", "--repeats", "1"]
    trained = ["--long", "8", "--long-tokens", "2048", "--short", "0", "--microbatch", "16384"] if gpu else [
        "--long", "2", "--long-tokens", "64", "--short", "0", "--repeats", "1"]
    # The short one gives the long one an advantage: alone it is no better than its group, and its gradient is zero.
    long = ["--long", "1", "--long-tokens", "16384", "--short", "1", "--microbatch", "16640", "--repeats", "2"] if gpu else [
        "--long", "1", "--long-tokens", "256", "--short", "1", "--repeats", "1"]

    def bench(name: str, kind: str, sizes: list[str], seconds: float) -> Step:
        figures = out / f"{name}.json"
        traced = [] if name == "train-long" else ["--trace", str(out / f"{name}.trace.json")]
        argv = [loadtest, "bench", kind, "--model", model, *rival, *sizes, *traced, "--out", str(figures)]
        return Step(name, argv, seconds, figures)

    return [bench("generate", "generate", sampled, 130), bench("train", "train", trained, 75),
            bench("train-long", "train", long, 65)]


def steps(gpu: bool, out: Path, compared: bool) -> list[Step]:
    """In the order in which they are worth their time. Their limits are ten minutes together."""
    def run(name: str, file: str, seconds: float, few: list[str]) -> Step:
        argv = [str(BIN / "millrace"), "up", str(HERE / file), "--dir", str(out / name), "--fresh", *few]
        return Step(name, argv, seconds, out / name / "report.json")

    made = [sys.executable, str(HERE / "model.py"), str(out / "model"), *([] if gpu else ["--small"])]
    return [
        *tests(gpu),
        run("frozen-lake", "frozen-lake-surroundings.toml", 40, [] if gpu else ["--steps", "2"]),
        Step("model", made, 40),
        *benches(gpu, out, compared),
        run("half-billion", "half-billion.toml", 70, [] if gpu else ["--steps", "1"]),
    ]


def warned(out: Path) -> list[str]:
    """What any log says of kernels that were not used, with the log's name."""
    found = []
    for log in sorted(out.rglob("*.log")):
        lines = goals.fell_back(log.read_text(encoding="utf-8", errors="replace"))
        found.extend(f"{log.relative_to(out)}: {line}" for line in lines)
    return found


def checked_torch():
    """The torch of this Python, or why it will not do."""
    try:
        import torch
    except ImportError:
        return None, f"{sys.executable} has no torch; give this program a Python that has torch {TORCH}x"
    if not torch.__version__.startswith(TORCH):
        return None, f"torch is {torch.__version__}; the programs are linked to {TORCH}x"
    return torch, ""


def has_transformers() -> bool:
    try:
        import transformers  # noqa: F401
    except ImportError:
        say("without transformers nothing is compared with it, and no MFU is measured")
        return False
    return True


def play_all(todo: list[Step], env: dict[str, str], out: Path, minutes: float) -> list[Result]:
    """One after another, whatever became of the one before."""
    deadline = time.monotonic() + 60 * minutes
    results = []
    for step in todo:
        result = play(step, env, out, deadline)
        say(f"{result.name}: {result.verdict} ({result.seconds:.0f} s)")
        if result.verdict.startswith("failed") and result.log:
            tail = (out / result.log).read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
            say("\n      ".join(["its last words:", *tail]))
        results.append(result)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("millrace-gpu-report"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--on-cpu", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps alone")
    args = parser.parse_args()
    torch, why = checked_torch()
    if torch is None:
        say(f"NOT RUN: {why}")
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
    todo = steps(gpu, out, has_transformers())
    if args.only:
        todo = [step for step in todo if step.name in args.only]
    results = play_all(todo, env, out, args.minutes)
    report(out, results, {"device": device, "torch": torch.__version__, "bytes_per_s": speed, "proves_a_gpu": gpu})
    return 0 if results and all(result.verdict == "passed" for result in results) else 1


def report(out: Path, results: list[Result], about: dict[str, object]) -> None:
    """Prints the goals and writes everything."""
    weights = out / "model/model.safetensors"
    figures = {result.name: result.figures for result in results}
    found = goals.table(figures, weights.stat().st_size if weights.is_file() else 0, about["bytes_per_s"])
    warnings = warned(out)
    for line in warnings:
        say(f"KERNELS NOT USED: {line}")
    if not about["proves_a_gpu"]:
        say("goals are a GPU's: what follows shows that they are computed, and nothing else")
    print(goals.printed(found), flush=True)
    content = {**about, "goals": [asdict(goal) for goal in found], "kernels_not_used": warnings,
               "steps": [asdict(result) for result in results]}
    (out / "report.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    say(f"in {out / 'report.json'}")


if __name__ == "__main__":
    sys.exit(main())
