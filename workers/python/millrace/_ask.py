"""What may be asked, and of whom: the registered rewards and environments."""

from __future__ import annotations

import inspect
import math
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Callable

# Names become parts of subjects on the queue.
NAME = re.compile(r"[a-z0-9_-]{1,64}")
# Episodes whose environment is kept, so that the next step need not play the earlier ones again.
KEPT = 1024

rewards: dict[str, Callable[..., float]] = {}
environments: dict[str, "Episodes"] = {}


class Retry(Exception):
    """The answer cannot be had now: a judge is overloaded, a file is not there yet. The task is asked again.

    Any other exception means that nobody can answer: the task goes to the dead letters with the exception, and the
    rollout is played anew. Neither is ever a reward of 0.
    """

    def __init__(self, reason: str, after_s: float = 1.0):
        super().__init__(reason)
        self.after_s = after_s


@dataclass(frozen=True)
class Turn:
    """What one turn brought."""

    reward: float
    valid: bool
    tokens: int


@dataclass(frozen=True)
class Utterance:
    """What one side said at once: speaker is "environment" or "policy"."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Rollout:
    """A finished rollout. conversation is empty where the environment speaks tokens; row has the fields of the dataset's
    row but its prompt, the answer as text under "answer", and is empty where the environment has no rows."""

    turns: list[Turn]
    success: bool
    conversation: list[Utterance]
    row: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """What was said first."""
        return self.conversation[0].text if self.conversation else ""

    @property
    def answer(self) -> str:
        """What the policy said last."""
        said = [utterance.text for utterance in self.conversation if utterance.speaker == "policy"]
        return said[-1] if said else ""


def reward(name: str):
    """Makes a function a reward: called with a Rollout and the run file's settings, it returns a finite number."""

    def register(function):
        rewards[_free(name, rewards, "reward")] = function
        return function

    return register


def environment(name: str):
    """Makes a class an environment, in the way of gymnasium and GEM: created with the run file's settings.

    reset(seed) or reset(seed, split), with split "train" or "held_out", returns the first text, or (text, info).
    step(said) returns (text, reward, done), (text, reward, done, info), or gymnasium's five values. info may hold
    "success" (default: done with a reward above 0) and "valid" (default: true). What follows must follow from the seed
    and from what was said: any copy may be asked for the next step, and then plays the earlier ones again.
    """

    def register(kind):
        environments[_free(name, environments, "environment")] = Episodes(kind)
        return kind

    return register


def _free(name: str, taken: dict, what: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{what} name={name!r} may hold only a-z, 0-9, '-' and '_', 1 to 64 of them")
    if name in taken:
        raise ValueError(f"{what} name={name!r} is taken already")
    return name


class Episodes:
    """One kind of environment, and the episodes under way that are still at hand."""

    def __init__(self, kind: Callable[..., Any]):
        self.kind = kind
        self.kept: OrderedDict[tuple, Any] = OrderedDict()

    def reset(self, settings: dict, split: str, seed: int) -> dict:
        env, text = self._begin(settings, split, seed)
        said: list[str] = []
        self._keep(settings, split, seed, said, env)
        return {"state": {"split": split, "seed": seed, "said": said}, "text": text}

    def step(self, settings: dict, state: dict, words: str) -> dict:
        split, seed, said = state["split"], state["seed"], state["said"]
        # Taken out: a step changes it, and the same step may be asked for again.
        env = self.kept.pop(_key(settings, split, seed, said), None)
        if env is None:
            env, _ = self._begin(settings, split, seed)
            for earlier in said:
                env.step(earlier)
        told = _told(env.step(words))
        if not told["done"]:
            said = [*said, words]
            self._keep(settings, split, seed, said, env)
            told["state"] = {"split": split, "seed": seed, "said": said}
        return told

    def _begin(self, settings: dict, split: str, seed: int) -> tuple[Any, str]:
        env = self.kind(**settings)
        takes = inspect.signature(env.reset).parameters
        first = env.reset(seed=seed, split=split) if "split" in takes else env.reset(seed=seed)
        return env, str(first[0] if isinstance(first, tuple) else first)

    def _keep(self, settings: dict, split: str, seed: int, said: list[str], env: Any) -> None:
        self.kept[_key(settings, split, seed, said)] = env
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)


def _key(settings: dict, split: str, seed: int, said: list[str]) -> tuple:
    return repr(sorted(settings.items())), split, seed, tuple(said)


def _told(step: tuple) -> dict:
    if len(step) == 5:
        text, reward_, terminated, truncated, info = step
        done = bool(terminated or truncated)
    else:
        text, reward_, done, *rest = step
        done, info = bool(done), rest[0] if rest else {}
    reward_ = finite(reward_, "reward")
    return {
        "text": "" if text is None else str(text),
        "reward": reward_,
        "done": done,
        "success": bool(info.get("success", done and reward_ > 0)),
        "valid": bool(info.get("valid", True)),
    }


def finite(number: Any, what: str) -> float:
    """The number, which must be one: a missing or broken reward is a failure and never 0."""
    if isinstance(number, (str, bytes)) or number is None:
        raise TypeError(f"{what}={number!r} is no number")
    number = float(number)
    if not math.isfinite(number):
        raise ValueError(f"{what}={number} is not finite")
    return number


def score(name: str, settings: dict, rollout: Rollout) -> float:
    """What the reward of this name gives."""
    return finite(rewards[name](rollout, **settings), "score")
