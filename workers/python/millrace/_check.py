"""Whether an environment keeps the promises that workers rely on, tried with an agent that says things at random."""

import json
import random
import string

from . import _ask, _serve


def check(kind, settings: dict | None = None, seeds: int = 20, turns: int = 50, words=None) -> None:
    """Plays an environment's class with a random agent; raises AssertionError at the first broken promise.

    words(random, text) makes what the agent says; by default a few letters, digits or nothing at all.
    """
    settings, words = _sent(settings or {}), words or _babble
    seen = set()
    for seed in range(seeds):
        split = "held_out" if seed % 5 == 4 else "train"
        told = _ask.Episodes(kind).reset(settings, split, seed)
        again = _ask.Episodes(kind).reset(settings, split, seed)
        assert told == again, f"seed={seed}: two resets differ: {told['text']!r}, {again['text']!r}"
        assert told["text"], f"seed={seed}: reset says nothing"
        seen.add(told["text"])
        _play(kind, settings, told, random.Random(seed), turns, words)
    assert len(seen) > 1 or seeds < 3, "every seed gives the same start: does reset use its seed?"


def _play(kind, settings, told, chance, turns, words) -> None:
    here = _ask.Episodes(kind)
    for turn in range(turns):
        said = words(chance, told["text"])
        # One copy has the episode at hand, the other has only what the task carries.
        state = _sent(told["state"])
        told_here = here.step(settings, told["state"], said)
        try:
            elsewhere = _ask.Episodes(kind).step(settings, state, said)
        except _ask.NotDeterministic as error:
            raise AssertionError(f"turn={turn}: {error}") from error
        except Exception as error:
            raise AssertionError(f"turn={turn}: only where the episode is not at hand, {error!r}{_way(told, state)}") from error
        assert _sent(told_here) == _sent(elsewhere), (
            f"turn={turn}: played again it says another thing: {told_here}, {elsewhere}{_way(told, state)}"
        )
        told = told_here
        if told["done"]:
            return
        assert told["text"], f"turn={turn}: it says nothing and is not done"


def _sent(message):
    """As the other side reads it: a task carries JSON."""
    return json.loads(_serve._encode(message))


def _way(told, state) -> str:
    was, became = told["state"].get("saved"), state.get("saved")
    return "" if was == became else f"; what save() gives, {was!r:.200}, is {became!r:.200} as JSON"


def _babble(chance: random.Random, _text: str) -> str:
    return "".join(chance.choice(string.ascii_lowercase + string.digits + " ") for _ in range(chance.randrange(12)))
