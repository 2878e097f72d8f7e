"""A buffer in memory: `memory.py BYTES SECONDS` puts rollouts into a multiprocessing.Queue, which another process empties.

It prints how many came out in a second.
"""

import multiprocessing
import sys
import time


def empty(queue, counted, seconds):
    queue.get()
    count, since = 0, time.monotonic()
    while time.monotonic() - since < seconds:
        queue.get()
        count += 1
    counted.put(count / (time.monotonic() - since))


def main():
    size, seconds = int(sys.argv[1]), float(sys.argv[2])
    # As many as are on their way where each turn is synced; up to 1,024 where it is not.
    queue, counted = multiprocessing.Queue(maxsize=64), multiprocessing.Queue()
    taker = multiprocessing.Process(target=empty, args=(queue, counted, seconds), daemon=True)
    taker.start()
    rollout = bytes(size)
    while taker.is_alive():
        try:
            queue.put(rollout, timeout=0.2)
        except Exception:
            continue
    print(counted.get())
    # What is left in the queue is nobody's.
    queue.cancel_join_thread()


main()
