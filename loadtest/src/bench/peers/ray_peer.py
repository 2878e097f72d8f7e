"""Ray on this machine: `ray_peer.py tasks|actors`. Nothing that it holds outlives its processes."""

import os
import sys

import ray
from harness import lone, rate, serve

PAYLOAD = bytes(256)


@ray.remote
def task(payload):
    return payload


@ray.remote
class Actor:
    def task(self, payload):
        return payload


def start():
    cores = os.cpu_count()
    # As its documentation advises: as many processes as cores, results fetched in batches, references passed on.
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="error")
    if sys.argv[1] == "tasks":
        call = task.remote
        first = second = third = task
    else:
        actors = [Actor.remote() for _ in range(cores)]
        turn = iter(range(1 << 60))
        call = lambda payload: actors[next(turn) % cores].task.remote(payload)
        stages = [Actor.remote() for _ in range(3)]
        first, second, third = (stage.task for stage in stages)
        keep.extend([*actors, *stages])
    chain = lambda: third.remote(second.remote(first.remote(PAYLOAD)))
    measures = {
        "tasks": lambda in_flight, s: rate(lambda n: [call(PAYLOAD) for _ in range(n)], ray.get, in_flight, s),
        "lone": lambda _, s: lone(lambda: ray.get(call(PAYLOAD)), s),
        "chain": lambda in_flight, s: rate(lambda n: [chain() for _ in range(n)], ray.get, in_flight, s),
    }
    return measures, ray.shutdown


# An actor ends when nothing refers to it.
keep = []
serve(start)
