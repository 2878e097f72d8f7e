"""The loop: a line of JSON in, a line of JSON out, in the same order, until the worker closes the input."""

import faulthandler
import json
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from . import _ask
from ._live import Live

PROTOCOL = 1
# Requests that the worker may send before it reads an answer; also the threads of environments that wait for others.
BATCH = 64
# Bytes read at once.
CHUNK = 1 << 20
# Seconds for which an answer may wait for those of the same chunk.
HELD_BACK = 0.02

# The environment of a client that has this process to itself; workers never ask for it.
_live = Live()
_encode = json.JSONEncoder(allow_nan=False).encode


class Hung(BaseException):
    """The time of one request is over. Not an Exception: what hangs must not catch it."""


def serve(seconds: float | None = None) -> None:
    """Says what is registered, then answers. Returns when the worker has gone.

    A request that takes longer than `seconds` fails with the place at which it hung; default MILLRACE_STEP_SECONDS, or
    100, which is less than the worker's own limit of 120. Code that never returns to Python is ended by the worker.
    """
    # Whatever prints must not come between: the standard output is the way to the worker.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # A child that reads its input must find none of the requests there. What os.dup gives, no child inherits.
    source, nothing = os.dup(sys.stdin.fileno()), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    # A crash in native code says where, in the worker's log.
    faulthandler.enable()
    environments, rewards = sorted(_ask.environments), sorted(_ask.rewards)
    hello = {"millrace": PROTOCOL, "environments": environments, "rewards": rewards, "batch": BATCH}
    _write(out, [_encode(hello)])
    seconds = float(os.environ.get("MILLRACE_STEP_SECONDS", 100)) if seconds is None else seconds
    signal.signal(signal.SIGALRM, _alarm)
    try:
        _loop(source, out, seconds)
    except KeyboardInterrupt:
        pass


def _loop(source: int, out: int, seconds: float) -> None:
    threads = ThreadPoolExecutor(BATCH, thread_name_prefix="millrace")
    rest = b""
    while chunk := _read(source):
        *lines, rest = (rest + chunk).split(b"\n")
        due: deque = deque()
        told = time.monotonic()
        for line in lines:
            question = json.loads(line)
            due.append(threads.submit(answer, question) if _waits(question) else _within(question, seconds))
            if time.monotonic() - told > HELD_BACK:
                _write(out, _ready(due))
                told = time.monotonic()
        while due:
            if isinstance(due[0], Future):
                due[0].result()
            _write(out, _ready(due))
    threads.shutdown(wait=False, cancel_futures=True)


def _read(source: int) -> bytes:
    """What has arrived; empty when the worker has gone. Meanwhile environments that nobody asks for are closed."""
    # Once in any case: there may be no pause between requests.
    rest = _ask.close_idle()
    while not select.select([source], [], [], rest)[0]:
        rest = _ask.close_idle()
    return os.read(source, CHUNK)


def _ready(due: deque) -> list[str]:
    """The answers that are there, taken from the front: they are told in the order of the requests."""
    lines = []
    while due and (not isinstance(due[0], Future) or due[0].done()):
        first = due.popleft()
        lines.append(first.result() if isinstance(first, Future) else first)
    return lines


def _write(out: int, lines: list[str]) -> None:
    data = memoryview("".join(line + "\n" for line in lines).encode())
    while data:
        data = data[os.write(out, data) :]


def _waits(question: dict) -> bool:
    """Whether it is for an environment that waits for another process, so that many are asked at once."""
    episodes = _ask.environments.get(question.get("environment"))
    return episodes is not None and episodes.threads


def _alarm(_signal, _frame):
    raise Hung


def _within(question: dict, seconds: float) -> str:
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return answer(question)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Hung:
        traceback.print_exc()
        reason = f"no answer within {seconds:g} s; it hung here:\n{_where(-5)}"
        return _line(question, {"refused": {"reason": reason}})


def _where(limit: int) -> str:
    return traceback.format_exc(limit=limit)


def answer(question: dict) -> str:
    """The answer to one question, as a line; what goes wrong is an answer too."""
    try:
        return _line(question, _answer(question))
    except _ask.Retry as again:
        return _line(question, {"refused": {"reason": str(again), "retry_after_s": again.after_s}})
    # The caller's code may raise anything, and may call exit().
    except (Exception, SystemExit):
        traceback.print_exc()
        return _line(question, {"refused": {"reason": _where(-3)}})


def _line(question: dict, told: dict) -> str:
    """The answer with the number of its request, by which it is never taken for another's."""
    return _encode({**told, "request": question["request"]} if "request" in question else told)


def _answer(question: dict) -> dict:
    ask, settings = question["ask"], question.get("settings", {})
    if ask == "live_make":
        return {"live": _live.make(question["id"])}
    if ask == "live_reset":
        return {"live": _live.reset(question["seed"])}
    if ask == "live_step":
        return {"live": _live.step(question["said"])}
    if ask == "score":
        rollout = _ask.Rollout(
            turns=[_ask.Turn(**turn) for turn in question["turns"]],
            success=question["success"],
            conversation=[_ask.Utterance(**utterance) for utterance in question["conversation"]],
            row=question.get("row", {}),
        )
        return {"score": _ask.score(question["reward"], settings, rollout)}
    episodes = _ask.environments[question["environment"]]
    if ask == "reset":
        return {"step": episodes.reset(settings, question["split"], question["seed"])}
    if ask == "step":
        return {"step": episodes.step(settings, question["state"], question["said"])}
    raise ValueError(f"ask={ask!r} is not known to this version of the package")
