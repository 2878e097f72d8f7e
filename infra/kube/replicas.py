"""How many pods the generate pool was told to have, over time, and whether the numbers went the right way."""

import itertools
import threading
import time

from cluster import Cluster
from release import BASE, GENERATE


class Replicas:
    """Every number of replicas that the pool's Deployment was told, with its time, as the API server tells them."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.ended = cluster, threading.Event()
        self.seen: list[tuple[float, int]] = []

    def begin(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        base = BASE.rpartition("/")[0]
        for kind, each in self.cluster.api.watch(f"{base}?fieldSelector=metadata.name%3D{GENERATE}", self.ended):
            if kind in ("ADDED", "MODIFIED"):
                wanted = each["spec"]["replicas"]
                if not self.seen or self.seen[-1][1] != wanted:
                    self.seen.append((time.monotonic(), wanted))

    @property
    def now(self) -> int | None:
        return self.seen[-1][1] if self.seen else None

    def since(self, at: int) -> list[int]:
        """The numbers from the ``at``-th on."""
        return [wanted for _, wanted in self.seen[at:]]


def passes(seen: list[int], stops: list[int]) -> bool:
    """Whether `seen` goes from stop to stop, and only up or only down between two."""
    rest = iter(seen)
    if next(rest, None) != stops[0]:
        return False
    for before, stop in itertools.pairwise(stops):
        at = before
        while at != stop:
            number = next(rest, None)
            if number is None or not min(at, stop) <= number <= max(at, stop):
                return False
            at = number
    return next(rest, None) is None
