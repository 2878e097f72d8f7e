"""Environments of episodes under way, kept at hand so that the next step need not play the earlier ones again.

Nobody says that an episode was cut short, dropped or failed: what is kept goes when there is no room, when it was not
asked for in a while, or when a new environment cannot begin, as where a server has few sessions.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Iterator


class Kept:
    """At most `room` environments, each for `idle_s` seconds."""

    def __init__(self, room: int, idle_s: float):
        self.room, self.idle_s = room, idle_s
        # By the order of their coming: key, environment, and when it came.
        self.entries: OrderedDict[int, tuple[tuple, Any, float]] = OrderedDict()
        # Several of one key where rollouts of a group have said the same so far.
        self.by_key: dict[tuple, list[int]] = {}
        self.number, self.lock = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, key: tuple, env: Any) -> None:
        with self.lock:
            self.number += 1
            self.entries[self.number] = key, env, time.monotonic()
            self.by_key.setdefault(key, []).append(self.number)
            old = [self._pop(next(iter(self.entries))) for _ in range(len(self.entries) - self.room)]
        for env in old:
            abandon(env)

    def take(self, key: tuple) -> Any:
        """The environment of this key that came last; None where there is none."""
        with self.lock:
            return self._pop(self.by_key[key][-1]) if key in self.by_key else None

    def close_oldest(self, settings: Any) -> bool:
        """Closes the oldest one of these settings, the first part of its key; False where there is none."""
        with self.lock:
            numbers = (number for number, (key, _, _) in self.entries.items() if key[0] == settings)
            oldest = next(numbers, None)
            env = None if oldest is None else self._pop(oldest)
        if env is not None:
            abandon(env)
        return env is not None

    def close_idle(self) -> float | None:
        """Closes those that nobody asked for in a while; the seconds until the next one may be due, None without any."""
        now, old, rest = time.monotonic(), [], None
        with self.lock:
            while self.entries:
                number, (_, _, since) = next(iter(self.entries.items()))
                rest = since + self.idle_s - now
                if rest > 0:
                    break
                old.append(self._pop(number))
                rest = None
        for env in old:
            abandon(env)
        return rest

    def _pop(self, number: int) -> Any:
        key, env, _ = self.entries.pop(number)
        numbers = self.by_key[key]
        numbers.remove(number)
        if not numbers:
            del self.by_key[key]
        return env


def close(env: Any) -> None:
    if hasattr(env, "close"):
        env.close()


def abandon(env: Any) -> None:
    """Closes an environment whose own failure, if it has one, is what is told."""
    try:
        close(env)
    # The caller's code may raise anything, and may call exit().
    except (Exception, SystemExit):
        traceback.print_exc()


@contextmanager
def closed_on_failure(env: Any) -> Iterator[None]:
    """Closes the environment when what is done with it raises. One that hung may hang again: nobody waits for its end."""
    try:
        yield
    except (Exception, SystemExit):
        abandon(env)
        raise
    except BaseException:
        threading.Thread(target=abandon, args=(env,), daemon=True).start()
        raise
