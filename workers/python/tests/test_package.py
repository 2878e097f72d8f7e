"""The package by itself: python3 -m unittest discover workers/python/tests"""

import json
import os
import random
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
sys.path.insert(0, os.path.join(HERE, "..", "examples"))

import millrace  # noqa: E402
import riddles  # noqa: E402
from millrace import _ask, _serve  # noqa: E402


def answer(question):
    return json.loads(_serve.answer(question))


def reset(**changes):
    question = {"ask": "reset", "environment": "larger", "settings": {"largest": 50}, "split": "train", "seed": 7}
    return {**question, **changes}


def step(told, said):
    question = {"ask": "step", "environment": "larger", "settings": {"largest": 50}}
    return {**question, "state": told["step"]["state"], "said": said}


def score(reward, settings, said="Short."):
    conversation = [{"speaker": "environment", "text": "Hm?"}, {"speaker": "policy", "text": said}]
    turns = [{"reward": 1.0, "valid": True, "tokens": 2}]
    question = {"ask": "score", "reward": reward, "settings": settings, "turns": turns}
    return answer({**question, "success": True, "conversation": conversation})


class Package(unittest.TestCase):
    def test_an_episode_goes_on_anywhere(self):
        first = answer(reset())
        self.assertEqual(first, answer(reset()))
        wrong = answer(step(first, "0, I think"))
        self.assertFalse(wrong["step"]["done"])
        # Another copy has nothing but what the task carries.
        while _ask.environments["larger"].kept.close_oldest(repr({"largest": 50})):
            pass
        self.assertEqual(wrong, answer(step(first, "0, I think")))
        right = str(max(int(n) for n in first["step"]["text"].replace("?", " ").replace(",", " ").split() if n.isdigit()))
        told = answer(step(wrong, right))["step"]
        self.assertTrue(told["done"] and told["success"])
        self.assertEqual(told["reward"], 1.0)

    def test_the_example_keeps_the_promises(self):
        millrace.check(riddles.Larger, {"largest": 30})

    def test_broken_promises_are_found(self):
        class Forgetful:
            resets = 0

            def reset(self, seed):
                Forgetful.resets += 1
                return f"start {seed} {Forgetful.resets}"

            def step(self, said):
                return "on", 0.0, False

        class Global(Forgetful):
            turns = 0

            def reset(self, seed):
                return f"start {seed}"

            def step(self, said):
                Global.turns += 1
                return f"turn {Global.turns}", 0.0, False

        class Deaf(Forgetful):
            def reset(self, seed):
                return "always the same"

            def step(self, said):
                return "", 0.0, True

        for kind, words in [(Forgetful, "two resets differ"), (Global, "another thing"), (Deaf, "use its seed")]:
            with self.assertRaisesRegex(AssertionError, words):
                millrace.check(kind)

    def test_a_state_that_json_changes_is_found(self):
        class Saves:
            saved = None

            def reset(self, seed):
                self.at = type(self).saved
                return f"start {seed}"

            def step(self, said):
                return type(self).says(self.at), 0.0, False

            def save(self):
                return self.at

            def load(self, saved):
                self.at = saved

        kinds = {
            "keys": ({1: "one"}, lambda at: at[1], r"KeyError\(1\); what save\(\) gives, {1: 'one'}, is {'1': 'one'}"),
            "tuple": ((1, 2), lambda at: "pair" if at == (1, 2) else "list", r"says another .* \(1, 2\), is \[1, 2\] as JSON"),
            "fine": ({"one": [1, None, 0.1, -(1 << 63)]}, lambda at: str(at["one"]), None),
        }
        for name, (saved, says, words) in kinds.items():
            kind = type(name, (Saves,), {"saved": saved, "says": staticmethod(says)})
            if words is None:
                millrace.check(kind)
                continue
            with self.assertRaisesRegex(AssertionError, words):
                millrace.check(kind)
        # In a run as in a check: serde reads it as a number with a point.
        for far in [1 << 63, -(1 << 63) - 1, 1 << 127]:
            kind = type("Far", (Saves,), {"saved": {"generator": [{"state": far}]}})
            with self.assertRaisesRegex(ValueError, rf"save\(\)\['generator'\]\[0\]\['state'\]={far} is beyond 63 bits"):
                _ask.Episodes(kind).reset({}, "train", 1)

    def test_a_reward_that_is_none_is_no_reward(self):
        self.assertEqual(score("brevity", {"words": 4}), {"score": 1.0})
        self.assertEqual(score("brevity", {"words": 0}), {"score": 0.0})
        for name, value in [("nan", float("nan")), ("inf", float("inf")), ("none", None), ("text", "1")]:
            millrace.reward(f"gives-{name}")(lambda rollout, value=value: value)
            refused = score(f"gives-{name}", {})["refused"]
            self.assertNotIn("retry_after_s", refused)
        self.assertIn("TypeError", score("brevity", {"wrods": 4})["refused"]["reason"])

    def test_an_empty_answer_is_the_last_one(self):
        seen = []
        millrace.reward("sees")(lambda rollout: seen.append(rollout.answer) or 0.0)
        said = [("environment", "3 + 4?"), ("policy", "7"), ("environment", "Again."), ("policy", "")]
        conversation = [{"speaker": speaker, "text": text} for speaker, text in said]
        question = {"ask": "score", "reward": "sees", "settings": {}, "turns": [], "success": False}
        self.assertEqual(answer({**question, "conversation": conversation}), {"score": 0.0})
        self.assertEqual(seen, [""])

    def test_an_answer_has_its_requests_number(self):
        self.assertEqual(answer(reset(request=7)), {**answer(reset()), "request": 7})
        self.assertEqual(answer(reset(request=8, environment="none"))["request"], 8)

    def test_retry_is_asked_again(self):
        @millrace.reward("busy")
        def busy(rollout):
            raise millrace.Retry("the judge is busy", after_s=3)

        self.assertEqual(score("busy", {}), {"refused": {"reason": "the judge is busy", "retry_after_s": 3}})

    def test_names_are_checked(self):
        for name in ["", "A", "a.b", "x" * 65, None]:
            with self.assertRaises(ValueError):
                millrace.reward(name)(lambda rollout: 0)
        with self.assertRaisesRegex(ValueError, "taken"):
            millrace.reward("brevity")(lambda rollout: 0)

    def test_an_environment_that_draws_freely_is_refused_elsewhere(self):
        class Drawn:
            def reset(self, seed):
                return "go"

            def step(self, said):
                return str(random.random()), 0.0, False

        here, elsewhere = _ask.Episodes(Drawn), _ask.Episodes(Drawn)
        first = here.step({}, here.reset({}, "train", 1)["state"], "a")
        # Here it is at hand, and goes on.
        again = json.loads(json.dumps(first["state"]))
        here.step({}, first["state"], "b")
        with self.assertRaisesRegex(_ask.NotDeterministic, "turn=1 .* after 'a' it says another thing .* save"):
            elsewhere.step({}, again, "b")

    def test_a_state_that_is_written_is_read_and_not_played_again(self):
        class Counts:
            resets = 0

            def __init__(self, by=1):
                self.by, self.at = by, 0

            def reset(self, seed):
                Counts.resets += 1
                self.at = seed
                return f"at {seed}"

            def step(self, said):
                self.at += self.by
                return f"at {self.at}", 0.0, False

            def save(self):
                return self.at

            def load(self, saved):
                self.at = saved

        here = _ask.Episodes(Counts)
        told = here.reset({"by": 2}, "train", 5)
        for _ in range(30):
            told = here.step({"by": 2}, told["state"], "on")
        self.assertLess(len(json.dumps(told["state"])), 100)
        self.assertEqual(_ask.Episodes(Counts).step({"by": 2}, told["state"], "on")["text"], "at 67")
        self.assertEqual(Counts.resets, 1)

    def test_rollouts_of_a_group_keep_an_environment_each(self):
        made = []

        class Made:
            def __init__(self):
                made.append(self)

            def reset(self, seed):
                return "go"

            def step(self, said):
                return "on", 0.0, False

            def close(self):
                made.remove(self)

        episodes = _ask.Episodes(Made)
        states = [episodes.reset({}, "train", 1)["state"] for _ in range(8)]
        states = [episodes.step({}, state, "same")["state"] for state in states]
        self.assertEqual((len(made), len(episodes.kept)), (8, 8))
        # No more are kept than there is room for, and the others are closed.
        for seed in range(_ask.KEEP + 50):
            episodes.reset({}, "train", seed)
        self.assertEqual((len(made), len(episodes.kept)), (_ask.KEEP, _ask.KEEP))

    def test_a_fault_is_a_failure_with_its_words(self):
        faults = {
            "raise": lambda: 1 / 0,
            "exit": lambda: sys.exit("gone"),
            "nan": lambda: ("on", float("nan"), False),
            "word": lambda: ("on", "1", False),
            "none": lambda: ("on", None, False),
            "list": lambda: (["on"], 1.0, False),
            "pair": lambda: ("on", 1.0),
        }

        @millrace.environment("faulty")
        class Faulty:
            def __init__(self, fault):
                self.fault = fault

            def reset(self, seed):
                return ["no text"] if self.fault == "reset" else "" if self.fault == "empty" else "go"

            def step(self, said):
                return faults[self.fault]()

        words = ["division by zero", "SystemExit: gone", "not finite", "is no number", "is no number", "no text", "no (text"]
        for fault, expected in zip(faults, words, strict=True):
            told = answer(reset(environment="faulty", settings={"fault": fault}))
            refused = answer({**step(told, "a"), "environment": "faulty", "settings": {"fault": fault}})["refused"]
            self.assertIn(expected, refused["reason"])
        for fault, expected in [("reset", "is a list and no text"), ("empty", "reset says nothing"), (None, "go")]:
            self.assertIn(expected, str(answer(reset(environment="faulty", settings={"fault": fault}))))

    def test_environments_that_wait_are_asked_at_once_and_answered_in_order(self):
        program = (
            "import millrace, threading\n"
            "together = threading.Barrier(3)\n"
            "@millrace.environment('waits', threads=True)\n"
            "class Waits:\n"
            "    def reset(self, seed):\n"
            "        together.wait(60); return str(seed)\n"
            "    def step(self, said): ...\n"
            "millrace.serve()\n"
        )
        asked = [json.dumps(reset(environment="waits", settings={}, seed=seed)) for seed in (3, 1, 2)]
        ran = subprocess.run(
            [sys.executable, "-c", program],
            input="\n".join(asked) + "\n",
            env={**os.environ, "PYTHONPATH": os.path.join(HERE, "..")},
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual([json.loads(line)["step"]["text"] for line in ran.stdout.splitlines()[1:]], ["3", "1", "2"])

    def test_what_is_printed_does_not_come_between(self):
        program = (
            "import millrace, os\n"
            "@millrace.reward('loud')\n"
            "def loud(rollout):\n"
            "    print('aloud'); os.system('echo from a child'); return 1\n"
            "millrace.serve()\n"
        )
        question = {"ask": "score", "reward": "loud", "settings": {}, "turns": [], "success": True, "conversation": []}
        ran = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(question) + "\n",
            env={**os.environ, "PYTHONPATH": os.path.join(HERE, "..")},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [json.loads(line) for line in ran.stdout.splitlines()]
        self.assertEqual(lines, [{"millrace": 1, "environments": [], "rewards": ["loud"], "batch": 64}, {"score": 1.0}])
        self.assertIn("aloud", ran.stderr)

    def test_a_child_that_reads_its_input_gets_none_of_the_requests(self):
        program = (
            "import millrace, subprocess, sys\n"
            "@millrace.reward('runs')\n"
            "def runs(rollout):\n"
            "    child = [sys.executable, '-c', 'import sys; print(len(sys.stdin.read()))']\n"
            "    return float(subprocess.run(child, capture_output=True, check=True, timeout=60).stdout)\n"
            "millrace.serve()\n"
        )
        question = {"ask": "score", "reward": "runs", "settings": {}, "turns": [], "success": True, "conversation": []}
        environ = {**os.environ, "PYTHONPATH": os.path.join(HERE, "..")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", program], env=environ, text=True, **pipes) as copy:
            copy.stdout.readline()
            # The input stays open, as a worker's does: a child that waits for its end would wait for ever.
            for _ in range(2):
                copy.stdin.write(json.dumps(question) + "\n")
                copy.stdin.flush()
                self.assertEqual(json.loads(copy.stdout.readline()), {"score": 0.0})
            copy.stdin.close()


if __name__ == "__main__":
    unittest.main()
