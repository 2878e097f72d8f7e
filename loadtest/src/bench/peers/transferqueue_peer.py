"""verl's TransferQueue with its default store, in memory: a task is a row that is put, got and cleared.

It moves data and starts nothing, so no worker is called here. All rows in flight are one batch, as in verl.
"""

import os
import time

import ray
import torch
import transfer_queue as tq
from harness import lone, serve
from tensordict import TensorDict

# 256 bytes a field.
NUMBERS = 32
PARTITION = "peer"


def rows(n, field):
    return TensorDict({field: torch.zeros(n, NUMBERS, dtype=torch.int64)}, batch_size=n)


def keys(n, batch=iter(range(1 << 60))):
    number = next(batch)
    return [f"{number}-{row}" for row in range(n)]


def put_get_clear(n):
    names = keys(n)
    tq.kv_batch_put(keys=names, partition_id=PARTITION, fields=rows(n, "prompt"))
    tq.kv_batch_get(keys=names, partition_id=PARTITION)
    tq.kv_clear(keys=names, partition_id=PARTITION)


def chain(n):
    names = keys(n)
    for field in ("prompt", "response", "reward"):
        tq.kv_batch_put(keys=names, partition_id=PARTITION, fields=rows(n, field))
        tq.kv_batch_get(keys=names, partition_id=PARTITION, select_fields=field)
    tq.kv_clear(keys=names, partition_id=PARTITION)


def rate(call, n, seconds):
    call(n)
    done, since = 0, time.monotonic()
    while time.monotonic() - since < seconds:
        call(n)
        done += n
    return {"per_s": done / (time.monotonic() - since)}


def start():
    # Its controller and its two storage units are actors that ask for a core each.
    ray.init(num_cpus=os.cpu_count() + 3, include_dashboard=False, log_to_driver=False, logging_level="error")
    tq.init()
    measures = {
        "tasks": lambda in_flight, s: rate(put_get_clear, in_flight, s),
        "lone": lambda _, s: lone(lambda: put_get_clear(1), s),
        "chain": lambda in_flight, s: rate(chain, in_flight, s),
    }

    def close():
        tq.close()
        ray.shutdown()

    return measures, close


serve(start)
