"""What a GPU should reach, and whether it did. Pure functions of the figures that the steps left: whatever is missing,
half-written or nonsense is *not measured*, never a number and never an error.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

# From a file to an engine that samples with it.
READY_S = 1.5
MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"
# What the log of a worker or a test says where kernels failed their check: workers/torch/src/gpu_kernels.rs.
FELL_BACK = "this GPU computes with libtorch's plain operators"


@dataclass
class Goal:
    """A row of the table."""

    name: str
    goal: str
    measured: str
    verdict: str


def parse(text: str) -> object:
    """A file of figures; `None` where it is no JSON, as one is that was being written."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def get(figures: object, *path: str) -> object:
    """The field at this path; `None` where it ends before."""
    for name in path:
        figures = figures.get(name) if isinstance(figures, dict) else None
    return figures


def rows(figures: object, *path: str) -> list:
    """The list at this path; empty where there is none."""
    found = get(figures, *path)
    return found if isinstance(found, list) else []


def positive(number: object) -> float | None:
    """A number above 0, and finite; else `None`."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    return float(number) if math.isfinite(number) and number > 0 else None


def side(generate: object, sequences: int, name: str) -> object:
    """What one of those that sample came to with so many sequences."""
    for row in rows(generate, "rows"):
        if get(row, "sequences") == sequences:
            for one in rows(row, "sides"):
                if get(one, "name") == name:
                    return one
    return None


def of_bandwidth(generate: object, weights: int, bytes_per_s: float) -> tuple[float, float] | None:
    """Tokens a second of one sequence, and how many the memory allows, if each reads all weights once and nothing else.
    `weights` are the bytes of the file, in bf16."""
    ours = side(generate, 1, "millrace")
    speed, memory = positive(get(ours, "tokens_per_s")), positive(bytes_per_s)
    width = {"bfloat16": 2, "float32": 4}.get(str(get(ours, "dtype")))
    if speed is None or memory is None or width is None or weights <= 0:
        return None
    return speed, memory / (weights / 2 * width)


def over_transformers(generate: object, sequences: int) -> tuple[float, float] | None:
    """Our tokens a second and those of transformers."""
    both = [positive(get(side(generate, sequences, name), "tokens_per_s")) for name in ("millrace", "transformers")]
    return (both[0], both[1]) if both[0] is not None and both[1] is not None else None


def mfu(train: object) -> tuple[float, bool] | None:
    """The best share of a matrix product's speed, and whether layers were computed again."""
    found = []
    for mode in rows(train, "modes"):
        share = positive(get(mode, "ours", "mfu"))
        if share is not None:
            found.append((share, get(mode, "recompute") is True))
    return max(found, default=None)


def judged(name: str, goal: str, measured: str | None, met: Callable[[], bool]) -> Goal:
    if measured is None:
        return Goal(name, goal, "-", NOT_MEASURED)
    return Goal(name, goal, measured, MET if met() else MISSED)


def table(figures: dict[str, object], weights: int, bytes_per_s: float) -> list[Goal]:
    """All goals. `figures` are those of the steps by name: of a step that failed, those that it left before."""
    found = []
    lone = of_bandwidth(figures.get("generate"), weights, bytes_per_s)
    found.append(judged(
        "decoding one sequence", "50 % of what the memory allows",
        lone and f"{lone[0]:.0f} of {lone[1]:.0f} tokens/s ({lone[0] / lone[1]:.1%})",
        lambda: lone[0] >= 0.5 * lone[1]))
    many = over_transformers(figures.get("generate"), 64)
    found.append(judged(
        "decoding 64 sequences", "5 times transformers",
        many and f"{many[0]:.0f} and {many[1]:.0f} tokens/s ({many[0] / many[1]:.2f} times)",
        lambda: many[0] >= 5 * many[1]))
    for step, shape in (("train", "8 x 2,048"), ("train-long", "1 x 16,384")):
        best = mfu(figures.get(step))
        how = "computed again" if best and best[1] else "kept"
        found.append(judged(
            f"a train step of {shape} tokens", "40 % of a matrix product's speed",
            best and f"{best[0]:.1%}, activations {how}", lambda best=best: best[0] >= 0.4))
    ready = positive(get(figures.get("generate"), "ready", "ready_s"))
    found.append(judged(
        "weights of 0.6B from a file to ready", f"{READY_S} s", ready and f"{ready:.2f} s", lambda: ready <= READY_S))
    return found


def printed(goals: list[Goal]) -> str:
    """The table for people."""
    lines = [("", "goal", "measured", ""), *((one.name, one.goal, one.measured, one.verdict) for one in goals)]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def fell_back(log: str) -> list[str]:
    """Lines of a log that say that kernels of our own were not used."""
    return [line.strip() for line in log.splitlines() if FELL_BACK in line]
