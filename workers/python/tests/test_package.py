"""The package by itself: python3 -m unittest discover workers/python/tests"""

import json
import os
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
        _ask.environments["larger"].kept.clear()
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

    def test_a_reward_that_is_none_is_no_reward(self):
        self.assertEqual(score("brevity", {"words": 4}), {"score": 1.0})
        self.assertEqual(score("brevity", {"words": 0}), {"score": 0.0})
        for name, value in [("nan", float("nan")), ("inf", float("inf")), ("none", None), ("text", "1")]:
            millrace.reward(f"gives-{name}")(lambda rollout, value=value: value)
            refused = score(f"gives-{name}", {})["refused"]
            self.assertNotIn("retry_after_s", refused)
        self.assertIn("TypeError", score("brevity", {"wrods": 4})["refused"]["reason"])

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


if __name__ == "__main__":
    unittest.main()
