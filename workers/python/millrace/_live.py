"""One environment that stays in this process, for clients that speak gymnasium's five values: GEM's and ROCK's.

A worker asks for steps of many episodes, which any copy can answer. Here a client has an environment to itself: it makes
one, resets it as often as it likes and steps it; terminated, truncated and info reach it as the environment gave them.
"""

from __future__ import annotations

import json
import math
from typing import Any

from . import _ask
from ._kept import close, closed_on_failure

# Bytes of an observation, and of info as JSON.
TEXT_BYTES, INFO_BYTES = 512 * 1024, 256 * 1024
# How deep a value of info is followed: it may contain itself.
DEPTH = 16


class Live:
    def __init__(self):
        self.episodes, self.settings, self.env, self.is_fresh = None, {}, None, False

    def make(self, env_id: str) -> dict:
        """Makes the environment, so that a name or a setting that is wrong is told at once."""
        self.episodes, self.settings = resolve(env_id)
        self.env, self.is_fresh = self.episodes.kind(**self.settings), True
        return {}

    def reset(self, seed: int) -> dict:
        """The start that the seed draws, as a run's training draws it. Each reset is of an environment of its own."""
        if not self.is_fresh:
            self._drop()
            self.env = self.episodes.kind(**self.settings)
        env, self.env, self.is_fresh = self.env, None, False
        with closed_on_failure(env):
            first = env.reset(seed=seed, split="train") if self.episodes.splits else env.reset(seed=seed)
            text, info = first if isinstance(first, tuple) else (first, {})
            told = {"observation": _text(text), "info": _info(info)}
        self.env = env
        return told

    def step(self, said: str) -> dict:
        """The five values. An environment that failed, or whose episode is over, has to be reset first."""
        if self.env is None or self.is_fresh:
            raise RuntimeError("no episode is under way: reset it first")
        env, self.env = self.env, None
        with closed_on_failure(env):
            text, reward, terminated, truncated, info = _ask.five(env.step(said))
            told = {"observation": _text(text), "reward": reward, "terminated": terminated, "truncated": truncated}
            told["info"] = _info(info)
        self.env = env
        if terminated or truncated:
            self._drop()
        return told

    def _drop(self) -> None:
        env, self.env = self.env, None
        if env is not None:
            close(env)


def resolve(env_id: str) -> tuple[_ask.Episodes, dict]:
    """Of NAME, NAME/ID, or ID alone where one environment has ids: the environment and its settings."""
    known = _ask.environments
    if env_id in known:
        return known[env_id], {}
    name, _, rest = env_id.partition("/")
    if rest and name in known and known[name].id:
        return known[name], {known[name].id: rest}
    with_ids = [episodes for episodes in known.values() if episodes.id]
    if len(with_ids) == 1:
        return with_ids[0], {with_ids[0].id: env_id}
    forms = [f"{name}/ID" if known[name].id else name for name in sorted(known)]
    raise ValueError(f"env_id={env_id!r} is none of: {', '.join(forms)}")


def _text(value: Any) -> str:
    text = _ask.text(value)
    # What is no Unicode has no bytes, and raises here.
    size = len(text.encode())
    if size > TEXT_BYTES:
        raise ValueError(f"observation has bytes={size}, and at most {TEXT_BYTES} are sent")
    return text


def _info(value: Any) -> dict:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise TypeError(f"info={value!r:.200} is a {type(value).__name__} and no dict")
    info = plain(value)
    size = len(json.dumps(info))
    if size > INFO_BYTES:
        raise ValueError(f"info has bytes={size} as JSON, and at most {INFO_BYTES} are sent")
    return info


def plain(value: Any, depth: int = 0) -> Any:
    """What JSON can say of a value: NaN and infinities are null, what it cannot say at all is told as repr tells it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < DEPTH:
        if isinstance(value, dict):
            return {str(plain(str(key))): plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(inner, depth + 1) for inner in value]
        # Arrays and numbers of numpy and torch.
        if hasattr(value, "tolist"):
            return plain(value.tolist(), depth + 1)
    return plain(f"{value!r:.200}") if depth < DEPTH else "..."
