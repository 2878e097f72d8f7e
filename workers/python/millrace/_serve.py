"""The loop: a line of JSON in, a line of JSON out, until the worker closes the input."""

import json
import os
import sys
import traceback

from . import _ask

PROTOCOL = 1


def serve() -> None:
    """Says what is registered, then answers. Returns when the worker has gone."""
    # Whatever prints must not come between: the standard output is the way to the worker.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    hello = {"millrace": PROTOCOL, "environments": sorted(_ask.environments), "rewards": sorted(_ask.rewards)}
    _say(out, hello)
    try:
        for line in sys.stdin.buffer:
            _say(out, answer(json.loads(line)))
    except KeyboardInterrupt:
        pass


def _say(out, message: dict) -> None:
    out.write(json.dumps(message, allow_nan=False) + "\n")
    out.flush()


def answer(question: dict) -> dict:
    """The answer to one question; what goes wrong is an answer too."""
    try:
        return _answer(question)
    except _ask.Retry as again:
        return {"refused": {"reason": str(again), "retry_after_s": again.after_s}}
    except Exception:  # The caller's code may raise anything.
        traceback.print_exc()
        return {"refused": {"reason": traceback.format_exc(limit=-3)}}


def _answer(question: dict) -> dict:
    ask, settings = question["ask"], question["settings"]
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
