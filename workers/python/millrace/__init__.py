"""Environments and rewards of your own for Millrace, as plain functions and classes.

    import millrace

    @millrace.reward("brevity")
    def brevity(rollout, words=20):
        return 1.0 if len(rollout.answer.split()) <= words else 0.0

    @millrace.environment("riddles")
    class Riddles:
        def reset(self, seed): ...                 # -> text
        def step(self, said): ...                  # -> text, reward, done

    if __name__ == "__main__":
        millrace.serve()

`millrace up RUN.toml --exec "python3 this_file.py"`, or `millrace-worker --exec …` on any number of machines. The worker
does what every worker of Millrace does (pull, keep alive, check staleness, drain, settle); this process only answers. It
keeps nothing that matters: any copy, on any machine, may be asked for the next step.
"""

from ._ask import Retry, Rollout, Turn, Utterance, environment, reward
from ._check import check
from ._serve import serve

__all__ = ["Retry", "Rollout", "Turn", "Utterance", "check", "environment", "reward", "serve"]
