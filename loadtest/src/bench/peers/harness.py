"""A peer's side of `bench peers`: takes requests and gives answers in lines of JSON, and times what a peer does.

A request is {"measure": "tasks" | "lone" | "chain", "in_flight": tasks, "seconds": seconds}. The answer has either
"per_s", or "p50_us" and "p99_us". The process ends when its input does; what it started ends with it.
"""

import collections
import json
import os
import queue
import signal
import sys
import threading
import time

# Tasks that are submitted, and waited for, together: no peer is asked once for each.
BATCH = 128
# Seconds of tasks before anything is counted.
WARM = 1
# Seconds for a peer to end in order.
PATIENCE = 15
# All that a peer starts inherits this variable.
MARK = "MILLRACE_PEER"


def rate(submit, wait, in_flight, seconds):
    """Tasks a second with `in_flight` between submit and result. `submit(n)` returns what `wait` waits for."""
    batch = min(BATCH, in_flight)
    pending = collections.deque(submit(batch) for _ in range(in_flight // batch))
    # A peer may start its processes with the first tasks: all of those are done before anything is counted.
    warm, first = time.monotonic() + WARM, len(pending)
    while first > 0 or time.monotonic() < warm:
        wait(pending.popleft())
        pending.append(submit(batch))
        first -= 1
    done, since = 0, time.monotonic()
    while time.monotonic() - since < seconds:
        wait(pending.popleft())
        done += batch
        pending.append(submit(batch))
    took = time.monotonic() - since
    for rest in pending:
        wait(rest)
    return {"per_s": done / took}


def lone(call, seconds):
    """Round trips of one task at a time."""
    for _ in range(20):
        call()
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    times.sort()
    at = lambda share: times[int(len(times) * share)] * 1e6
    return {"p50_us": at(0.5), "p99_us": at(0.99)}


def end_all():
    """Kills all that this process has started, by mark and by group, and itself."""
    mark = f"{MARK}={os.environ.get(MARK, '')}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as variables:
                if mark in variables.read().split(b"\0") and int(pid) != os.getpid():
                    os.kill(int(pid), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            pass  # It is gone, or another user's.
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


def read(requests):
    """Consumes lines of input. Produces requests, then None. At the end of input the process ends after its patience."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    requests.put(None)
    time.sleep(PATIENCE)
    end_all()


def serve(start):
    """Answers until the input ends. `start()` returns what to do for each measure, and what ends the peer."""
    # What a peer prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests = queue.Queue()
    threading.Thread(target=read, args=(requests,), daemon=True).start()
    measures, close = start()
    while (request := requests.get()) is not None:
        answer = measures[request["measure"]](request["in_flight"], request["seconds"])
        print(json.dumps(answer), file=answers, flush=True)
    close()
    end_all()
