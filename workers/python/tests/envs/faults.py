"""A game of GEM that has each fault of an environment, a number of times in all, and is well otherwise.

Run as: faults.py FOLDER TIMES; the folder counts across processes.
"""

import os
import pathlib
import signal
import sys
import time

import gem

import millrace
import millrace.adapters.gem  # noqa: F401

FAULTS = ("raise", "exit", "die", "sleep", "nan", "text_reward", "no_text", "no_tuple")


def due(folder, times):
    """The next fault that has not happened so often yet."""
    for number in range(times):
        for fault in FAULTS:
            try:
                os.close(os.open(folder / f"{fault}{number}", os.O_CREAT | os.O_EXCL))
                return fault
            except FileExistsError:
                pass
    return None


class Faulty(gem.Env):
    def reset(self, seed=None):
        super().reset(seed)
        self.turn = 0
        return f"Say something about {seed}.", {}

    def step(self, action):
        self.turn += 1
        fault = due(pathlib.Path(sys.argv[1]), int(sys.argv[2])) if self.turn == 1 else None
        if fault == "raise":
            raise RuntimeError("the board is broken")
        if fault == "exit":
            sys.exit("the board is gone")
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "sleep":
            time.sleep(1000)
        if fault == "no_tuple":
            return None
        text = {"no_text": ["no", "text"]}.get(fault, "Go on.")
        reward = {"nan": float("nan"), "text_reward": "1.0"}.get(fault, 0.5)
        return text, reward, self.turn == 2, False, {}


gem.register("faulty", Faulty)
millrace.serve(seconds=1.0)
