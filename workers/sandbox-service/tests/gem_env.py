"""Environments that do what the action says, faults among them. Started by the service, in a sandbox for each."""

import os
import random
import signal
import sys
import time

import millrace

DO = {
    "nan": lambda: ("on", float("nan"), False, False, {}),
    "reward-text": lambda: ("on", "1", False, False, {}),
    "reward-list": lambda: ("on", [1.0], False, False, {}),
    "reward-none": lambda: ("on", None, False, False, {}),
    "observation-list": lambda: (["on"], 1.0, False, False, {}),
    "no-tuple": lambda: None,
    "long": lambda: ("x" * 1_000_000, 0.0, False, False, {}),
    "long-info": lambda: ("on", 0.0, False, False, {"x": "x" * 1_000_000}),
    "surrogate": lambda: ("\ud800", 0.0, False, False, {}),
    "raise": lambda: {}["no such move"],
    "exit": lambda: sys.exit("gone"),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(1_000_000),
    "info": lambda: ("on", 1, False, False, {"odd": float("inf"), "tuple": (1, None), "kind": object}),
    "stop": lambda: ("won", 1.0, True, False, {"why": "stopped"}),
}


@millrace.environment("scripted", id="kind")
class Scripted:
    def __init__(self, kind):
        if kind == "dies":
            print("out of luck", flush=True)
            os._exit(3)
        if kind == "hangs":
            deaf()
        if kind not in ("short", "long"):
            raise ValueError(f"kind={kind!r} is neither short nor long")
        self.left = {"short": 2, "long": 1_000_000}[kind]

    def reset(self, seed, split):
        self.draw = random.Random(seed)
        return f"begin {self.draw.random()}", {"split": split, "seed": seed}

    def step(self, said):
        if said == "deaf":
            deaf()
        if said == "flood":
            for to in (sys.stdout, sys.stderr):
                to.write("x" * 1_000_000)
                to.flush()
        if said == "garbage":
            # The way to the service is none of the three usual files.
            for fd in range(3, 10):
                try:
                    os.write(fd, b"{no answer}\n")
                except OSError:
                    pass
        if said in DO:
            return DO[said]()
        self.left -= 1
        return f"{said} {self.draw.random()}", 0.25, False, self.left == 0, {"left": self.left}


def deaf():
    """As native code that returns to nobody."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    while True:
        time.sleep(1_000)


@millrace.environment("other")
class Other(Scripted):
    def __init__(self):
        super().__init__("short")


millrace.serve()
