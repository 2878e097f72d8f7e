"""What may be asked, and of whom: the registered rewards and environments."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from dataclasses import dataclass, field
from typing import Any, Callable

from ._kept import Kept, close, closed_on_failure

# Names become parts of subjects on the queue.
NAME = re.compile(r"[a-z0-9_-]{1,64}")
# Of one kind of environment: how many are kept at hand, and for how many seconds.
KEEP, IDLE_S = 1024, 300.0

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
        """What the policy said in its last turn; empty where that was nothing."""
        said = [utterance.text for utterance in self.conversation if utterance.speaker == "policy"]
        return said[-1] if said else ""


def reward(name: str):
    """Makes a function a reward: called with a Rollout and the run file's settings, it returns a finite number."""

    def register(function):
        rewards[_free(name, rewards, "reward")] = function
        return function

    return register


def environment(name: str, *, threads: bool = False, id: str | None = None, keep: int = KEEP, idle_s: float = IDLE_S):
    """Makes a class an environment, in the way of gymnasium and GEM: created with the run file's settings.

    reset(seed) or reset(seed, split), with split "train" or "held_out", returns the first text, or (text, info).
    step(said) returns (text, reward, done), (text, reward, done, info), or gymnasium's five values. info may hold
    "success" (default: done with a reward above 0) and "valid" (default: true). close() is called, where there is one, at
    an episode's end and after any exception. Nobody says that an episode was cut short or dropped: its environment is
    closed when nobody asked for it for `idle_s` seconds, when more than `keep` wait for their next step, or when another
    one cannot begin. With keep=0 each step is of an environment of its own, closed at its end.

    What follows must follow from the seed and from what was said: any copy may be asked for the next step. It plays the
    earlier ones again, and refuses the step where they say another thing than before. A class with save(), which gives
    its state as JSON or None, and load(state) is loaded instead where there is one. With threads=True, for environments that wait for another
    process, many episodes are asked at once, each from one thread at a time. `id` is the setting that chooses one of many
    environments: clients of GEM's protocol have nothing but an id.
    """

    def register(kind):
        environments[_free(name, environments, "environment")] = Episodes(kind, threads, id, keep, idle_s)
        return kind

    return register


def _free(name: str, taken: dict, what: str) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{what} name={name!r} may hold only a-z, 0-9, '-' and '_', 1 to 64 of them")
    if name in taken:
        raise ValueError(f"{what} name={name!r} is taken already")
    return name


class NotDeterministic(RuntimeError):
    """Its earlier steps, played again, say another thing: nobody else can do the next one."""


class Episodes:
    """One kind of environment, and the episodes under way that are still at hand."""

    def __init__(
        self,
        kind: Callable[..., Any],
        threads: bool = False,
        id: str | None = None,
        keep: int = KEEP,
        idle_s: float = IDLE_S,
    ):
        self.kind, self.threads, self.id = kind, threads, id
        self.kept = Kept(keep, idle_s)
        self.saves = hasattr(kind, "save") and hasattr(kind, "load")
        self.splits = "split" in inspect.signature(kind.reset).parameters

    def reset(self, settings: dict, split: str, seed: int) -> dict:
        env, text = self._begin(settings, split, seed)
        state = {"split": split, "seed": seed, "said": [], "seen": [_digest("", "", text)]}
        return {"state": self._keep(settings, state, env), "text": text}

    def step(self, settings: dict, state: dict, words: str) -> dict:
        # Taken out: a step changes it, and the same step may be asked for again.
        env = self.kept.take(_key(settings, state))
        if env is None:
            env = self._again(settings, state)
        with closed_on_failure(env):
            told = _told(env.step(words))
        if told["done"]:
            close(env)
            return told
        seen = state["seen"] if "seen" in state else [""]
        after = {**state, "said": [*state["said"], words], "seen": [*seen, _digest(seen[-1], words, _content(told))]}
        told["state"] = self._keep(settings, after, env)
        return told

    def _begin(self, settings: dict, split: str, seed: int) -> tuple[Any, str]:
        given = {"seed": seed, "split": split} if self.splits else {"seed": seed}
        env, first = self._made(settings, lambda env: env.reset(**given))
        with closed_on_failure(env):
            words = text(first[0] if isinstance(first, tuple) else first)
            if not words:
                raise ValueError(f"seed={seed}: reset says nothing, and a rollout begins with a text")
        return env, words

    def _made(self, settings: dict, begin: Callable[[Any], Any]) -> tuple[Any, Any]:
        """A new environment, and what `begin` gives. Where that is refused, one that is kept may hold the last session."""
        try:
            return self._try(settings, begin)
        except Exception as error:
            # Who gave no answer in time would take as long again.
            if isinstance(error, TimeoutError) or not self.kept.close_oldest(repr(settings)):
                raise
        return self._try(settings, begin)

    def _try(self, settings: dict, begin: Callable[[Any], Any]) -> tuple[Any, Any]:
        env = self.kind(**settings)
        with closed_on_failure(env):
            return env, begin(env)

    def _again(self, settings: dict, state: dict) -> Any:
        """The environment in this state, made of what the task carries alone."""
        if "saved" in state:
            return self._made(settings, lambda env: env.load(state["saved"]))[0]
        env, text = self._begin(settings, state["split"], state["seed"])
        with closed_on_failure(env):
            seen = state.get("seen", [])
            at = _as_before("", "", text, seen, 0)
            for turn, words in enumerate(state["said"], 1):
                at = _as_before(at, words, _content(_told(env.step(words))), seen, turn)
        return env

    def _keep(self, settings: dict, state: dict, env: Any) -> dict:
        with closed_on_failure(env):
            saved = env.save() if self.saves else None
            _fits(saved, "save()")
        if saved is not None:
            # Enough by itself; the digest tells it from others at hand.
            state = {**state, "said": [], "seen": state["seen"][-1:], "saved": saved}
        self.kept.put(_key(settings, state), env)
        return state


def _fits(saved: Any, name: str) -> None:
    """Refuses whole numbers that are not the same after their way through the worker."""
    if isinstance(saved, int) and not -(1 << 63) <= saved < 1 << 63:
        raise ValueError(f"{name}={saved} is beyond 63 bits, which a task cannot carry: let save() write it as text")
    if isinstance(saved, dict):
        for key, inner in saved.items():
            _fits(inner, f"{name}[{key!r}]")
    elif isinstance(saved, (list, tuple)):
        for at, inner in enumerate(saved):
            _fits(inner, f"{name}[{at}]")


def close_idle() -> float | None:
    """Closes what nobody asked for in a while; the seconds until more may be due, None where nothing is kept."""
    rests = [episodes.kept.close_idle() for episodes in environments.values()]
    return min((rest for rest in rests if rest is not None), default=None)


def _key(settings: dict, state: dict) -> tuple:
    said = () if "seen" in state else tuple(state["said"])
    return repr(settings), state.get("split"), state.get("seed"), state.get("seen", [""])[-1], said


def _content(told: dict) -> str:
    return f"{told['reward']!r} {told['done']} {told['text']}"


def _digest(before: str, words: str, told: str) -> str:
    """Of an episode so far: what was said and told, and all that came before."""
    content = f"{before}\0{len(words)}\0{words}{told}"
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _as_before(before: str, words: str, told: str, seen: list[str], turn: int) -> str:
    at = _digest(before, words, told)
    # States of before there were digests have none.
    if turn < len(seen) and seen[turn] not in ("", at):
        what = f"after {words!r} it says" if turn else "its seed gives"
        raise NotDeterministic(
            f"turn={turn} was played again, as another process must, and {what} another thing than before, now "
            f"{told[:200]!r}: it is not deterministic, so its episodes cannot go on elsewhere; give it save() and load()"
        )
    return at


def text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"observation={value!r:.200} is a {type(value).__name__} and no text")
    return value


def five(step: tuple) -> tuple[Any, float, bool, bool, dict]:
    """Of three, four or five values five: one that says done alone has terminated."""
    if not isinstance(step, tuple) or not 3 <= len(step) <= 5:
        raise TypeError(f"step gave {step!r:.200}, and no (text, reward, done), with info or without")
    if len(step) == 5:
        words, reward_, terminated, truncated, info = step
    else:
        words, reward_, terminated, *rest = step
        truncated, info = False, rest[0] if rest else {}
    return words, finite(reward_, "reward"), bool(terminated), bool(truncated), info or {}


def _told(step: tuple) -> dict:
    words, reward_, terminated, truncated, info = five(step)
    done = terminated or truncated
    return {
        "text": text(words),
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
