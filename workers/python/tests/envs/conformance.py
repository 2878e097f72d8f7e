"""Environments of other packages, unmodified, as a worker plays them: `make envs`.

Each package is played by copies of the program that `--exec` would start, over the same lines. One copy plays many
episodes at once; another one, which has none of them at hand, must give every answer again from what a task carries.
"""

import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE, ROOT = HERE.parent.parent, HERE.parents[3]
GAMES, VERIFIERS = (ROOT / "target/envs" / name / "bin/python" for name in ("games", "verifiers"))
sys.path.insert(0, str(HERE))
EPISODES, TURNS = 32, 8
rows = []


class Copy:
    """A copy of the program, which is asked as a worker asks it."""

    def __init__(self, python, adapter):
        environment = {**os.environ, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{HERE}"}
        command = [python, "-W", "ignore", "-m", "millrace.adapters", adapter]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.adapter, self.offer = adapter, json.loads(self.process.stdout.readline())

    def ask(self, questions):
        """Sends all and reads their answers; no more at once than the program offers."""
        answers = []
        for at in range(0, len(questions), self.offer["batch"]):
            batch = questions[at : at + self.offer["batch"]]
            self.process.stdin.write("".join(json.dumps(question) + "\n" for question in batch).encode())
            self.process.stdin.flush()
            answers += [json.loads(self.process.stdout.readline()) for _ in batch]
        return answers

    def reset(self, settings, seeds):
        fixed = {"ask": "reset", "environment": self.adapter, "settings": settings}
        return self.ask([{**fixed, "split": split, "seed": seed} for split, seed in seeds])

    def step(self, settings, steps):
        fixed = {"ask": "step", "environment": self.adapter, "settings": settings}
        return self.ask([{**fixed, "state": state, "said": said} for state, said in steps])

    def cpu(self):
        """Seconds of processor time so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def play(copy, settings, words, episodes=EPISODES):
    """Plays all episodes at once with random words: ((split, seed), its reset, [(state, said, answer)])."""
    chance = random.Random(1)
    seeds = [("held_out" if seed % 4 == 3 else "train", seed) for seed in range(episodes)]
    resets = copy.reset(settings, seeds)
    played = [(seed, reset, []) for seed, reset in zip(seeds, resets)]
    live = {i: reset["step"] for i, reset in enumerate(resets)}
    for _ in range(TURNS):
        steps = [(i, told["state"], say(chance, words)) for i, told in live.items()]
        answers = copy.step(settings, [(state, said) for _, state, said in steps])
        for (i, state, said), answer in zip(steps, answers):
            played[i][2].append((state, said, answer))
            live[i] = answer["step"]
            if live[i]["done"]:
                del live[i]
    return played


def say(chance, words):
    return chance.choice(words).replace("N", str(chance.randrange(1, 21))).replace("K", str(chance.randrange(4)))


class Conformance(unittest.TestCase):
    def conforms(self, package, adapter, settings, words, python=GAMES, state="replayed", episodes=EPISODES):
        with contextlib.closing(Copy(python, adapter)) as here, contextlib.closing(Copy(python, adapter)) as elsewhere:
            self.agree(here, elsewhere, (package, settings, words, state, episodes))

    def agree(self, here, elsewhere, case):
        package, settings, words, state, episodes = case
        played = play(here, settings, words, episodes)
        texts = [reset["step"]["text"] for _, reset, _ in played]
        self.assertTrue(all(texts))
        # Another copy makes the same starts.
        self.assertEqual(elsewhere.reset(settings, [seed for seed, _, _ in played]), [reset for _, reset, _ in played])
        steps = [step for _, _, steps in played for step in steps]
        self.assertGreater(len(steps), episodes - 1)
        # Many episodes at once, in an order that no worker has: each step follows from what its task carries alone.
        random.Random(2).shuffle(steps)
        again = elsewhere.step(settings, [(carried, said) for carried, said, _ in steps])
        for (carried, said, answer), other in zip(steps, again):
            self.assertEqual(answer, other, (carried, said))
        self.assertEqual(state == "written", any("saved" in reset["step"]["state"] for _, reset, _ in played))
        # What it costs while the environments are at hand, on a machine where others work, too.
        before, begun = here.cpu(), time.monotonic()
        count = sum(1 + len(steps) for _ in range(2) for _, _, steps in play(here, settings, words, episodes))
        took, cpu = time.monotonic() - begun, max(here.cpu() - before, 0.01)
        rows.append((package, json.dumps(settings), len(steps), state, round(count / took), round(count / cpu)))

    def test_gymnasium(self):
        lake = {"id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"]}
        self.conforms("gymnasium", "gymnasium", lake, ["left", "down", "right", "up", "hm"], state="written")
        self.conforms("gymnasium", "gymnasium", {"id": "Taxi-v4"}, ["K", "4", "5"], state="written")
        self.conforms("gymnasium", "gymnasium", {"id": "CartPole-v1"}, ["0", "1"])
        self.conforms("gymnasium", "gymnasium", {"id": "Blackjack-v1"}, ["0", "1"])

    def test_gem(self):
        self.conforms("gem-llm", "gem", {"game": "game:GuessTheNumber-v0-easy"}, ["\\boxed{N}"])
        moves = ["\\boxed{up}", "\\boxed{left}", "\\boxed{down}", "\\boxed{right}"]
        # It draws a tile each turn, from the process's generator.
        self.conforms("gem-llm", "gem", {"game": "game:Game2048-v0-easy"}, moves)
        self.conforms("gem-llm", "gem", {"game": "game:Minesweeper-v0-easy"}, ["\\boxed{reveal K K}"])

    def test_reasoning_gym(self):
        for dataset in ("chain_sum", "countdown", "knights_knaves"):
            self.conforms("reasoning-gym", "reasoning_gym", {"dataset": dataset}, ["Answer: N", "no"])

    def test_textarena(self):
        self.conforms("textarena", "textarena", {"game": "2048-v0"}, ["[up]", "[left]", "[down]", "[right]"])
        self.conforms("textarena", "textarena", {"game": "Blackjack-v0"}, ["[hit]", "[stand]"])
        self.conforms("textarena", "textarena", {"game": "TowerOfHanoi-v0"}, ["[A C]", "[A B]", "[B C]"])

    def openenv(self, sessions=256):
        command = [GAMES, HERE / "openenv_server.py", str(sessions)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        return {"url": f"http://127.0.0.1:{int(server.stdout.readline())}", "observation": "text"}

    def test_openenv(self):
        settings = self.openenv()
        self.conforms("openenv", "openenv", settings, ["N", "K", "5"])
        copy = Copy(GAMES, "openenv")
        self.addCleanup(copy.close)
        # Its faults are failures with the server's words; the last one is an end of the server.
        for said, words in [("raise", "the board is broken"), ("nan", "reward"), ("die", "")]:
            start = copy.reset(settings, [("train", 7)])[0]["step"]["state"]
            self.assertIn(words, copy.step(settings, [(start, said)])[0]["refused"]["reason"])
        self.assertEqual(copy.reset(settings, [("train", 7)])[0]["refused"]["retry_after_s"], 15)

    def test_openenv_of_one_session(self):
        settings, copy = self.openenv(sessions=1), Copy(GAMES, "openenv")
        self.addCleanup(copy.close)
        # Nobody says that these were cut short: each gives its session to the next, and is played again.
        starts = [copy.reset(settings, [("train", seed)])[0]["step"] for seed in range(3)]
        told = [copy.step(settings, [(start["state"], "9")])[0]["step"]["text"] for start in starts]
        self.assertEqual(told, ["lower"] * 3)
        self.assertIn("broken", copy.step(settings, [(starts[0]["state"], "raise")])[0]["refused"]["reason"])
        self.assertIn("step", copy.reset(settings, [("train", 9)])[0])

    def test_verifiers(self):
        settings = {"taskset": "guess_taskset"}
        self.conforms("verifiers", "verifiers", settings, ["N", "K", "5"], VERIFIERS, episodes=8)

    def test_faults_of_verifiers(self):
        copy = Copy(VERIFIERS, "verifiers")
        self.addCleanup(copy.close)
        for fault, words in [("raise", "the board is broken"), ("nan", "not finite"), ("die", "died with exit code 3")]:
            settings = {"taskset": "guess_taskset", "env": {"taskset": {"fault": fault}}}
            told = copy.reset(settings, [("train", 7)])[0]
            while "step" in told:
                self.assertFalse(told["step"].get("done", False), told)
                told = copy.step(settings, [(told["step"]["state"], "0")])[0]
            self.assertIn(words, told["refused"]["reason"])


def show():
    print("\n| package | settings | answers equal elsewhere | state | answers/s | of a core |\n|---|---|---|---|---|---|")
    for package, settings, steps, state, wall, core in sorted(rows):
        print(f"| {package} | `{settings}` | {steps} | {state} | {wall:,} | {core:,} |")


if __name__ == "__main__":
    ran = unittest.main(exit=False, verbosity=2)
    show()
    sys.exit(not ran.result.wasSuccessful())
