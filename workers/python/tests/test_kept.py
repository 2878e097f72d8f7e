"""When environments are closed, beside an episode's end: python3 -m unittest discover workers/python/tests"""

import json
import os
import subprocess
import sys
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))

from millrace import _ask, _kept, _serve  # noqa: E402


class Sessions:
    """An environment behind a server that has one session, as OpenEnv's has."""

    open: list = []

    def __init__(self, fault=""):
        self.fault = fault

    def reset(self, seed):
        if Sessions.open:
            raise RuntimeError("the server is at capacity")
        Sessions.open.append(self)
        return self.say("reset", f"start {seed}")

    def step(self, said):
        return self.say("step", "on"), 0.0, said == "end"

    def say(self, at, text):
        if self.fault == at:
            raise KeyError("a fault")
        return [text] if self.fault == f"{at}-list" else "" if self.fault == f"{at}-empty" else text

    def close(self):
        if self in Sessions.open:
            Sessions.open.remove(self)
        if self.fault == "close":
            raise OSError("not closed")


class Saved(Sessions):
    def save(self):
        return self.say("save", "state")

    def load(self, saved):
        Sessions.open.append(self)
        self.say("load", "loaded")


class Kept(unittest.TestCase):
    def setUp(self):
        Sessions.open.clear()

    def test_truncated_and_failed_episodes_give_their_sessions_back(self):
        here = _ask.Episodes(Sessions)
        # Cut short by the run: nobody asks for the next step.
        for seed in range(3):
            here.step({}, here.reset({}, "train", seed)["state"], "a")
        self.assertEqual(len(Sessions.open), 1)
        # Its next step, of an episode that had to go, is played again in the session of the other.
        state = here.reset({}, "train", 7)["state"]
        here.reset({}, "train", 8)
        self.assertTrue(here.step({}, state, "end")["done"])
        self.assertEqual((Sessions.open, len(here.kept)), ([], 0))
        for kind, fault in [(Sessions, "reset"), (Sessions, "reset-list"), (Sessions, "reset-empty"), (Saved, "save")]:
            with self.assertRaises(Exception):
                _ask.Episodes(kind).reset({"fault": fault}, "train", 1)
            self.assertEqual(Sessions.open, [], fault)
        state = {"split": "train", "seed": 1, "said": ["b"], "seen": ["", "another"]}
        for fault in ["", "step", "step-list"]:
            # At its own step, and in one that is played again.
            for before in [{**state, "said": [], "seen": [""]}, state] if fault else [state]:
                with self.assertRaises(Exception):
                    _ask.Episodes(Sessions).step({"fault": fault}, before, "a")
                self.assertEqual(Sessions.open, [], fault)
        with self.assertRaises(KeyError):
            _ask.Episodes(Saved).step({"fault": "load"}, {**state, "saved": "state"}, "a")
        self.assertEqual(Sessions.open, [])

    def test_what_cannot_begin_says_why_and_a_close_that_fails_hides_nothing(self):
        held = _ask.Episodes(Sessions)
        held.reset({}, "train", 1)
        # Nothing of its own is kept, so nothing is closed for it; nor is what has other settings.
        for episodes, settings in [(_ask.Episodes(Sessions), {}), (held, {"fault": "other"})]:
            with self.assertRaisesRegex(RuntimeError, "at capacity"):
                episodes.reset(settings, "train", 2)
        self.assertEqual((len(Sessions.open), len(held.kept)), (1, 1))
        held.kept.close_oldest(repr({}))
        told = held.reset({"fault": "close"}, "train", 1)
        held.reset({"fault": "close"}, "train", 2)
        self.assertEqual((len(Sessions.open), told["text"]), (1, "start 1"))

    def test_no_more_are_kept_than_there_is_room_for(self):
        episodes = _ask.Episodes(Sessions, keep=0)
        state = episodes.reset({}, "train", 1)["state"]
        for _ in range(3):
            self.assertEqual((Sessions.open, len(episodes.kept)), ([], 0))
            state = episodes.step({}, state, "a")["state"]

    def test_what_nobody_asked_for_in_a_while_is_closed(self):
        made, now = [mock.Mock(spec=["close"]) for _ in range(4)], 0.0
        with mock.patch.object(_kept.time, "monotonic", lambda: now):
            kept = _kept.Kept(10, 60)
            self.assertIsNone(kept.close_idle())
            for now, env in zip([0.0, 10.0, 20.0, 30.0], made, strict=True):
                kept.put(("settings", "key"), env)
            self.assertIs(kept.take(("settings", "key")), made[3])
            now = 71.0
            self.assertEqual(kept.close_idle(), 9.0)
        self.assertEqual([env.close.call_count for env in made], [1, 1, 0, 0])
        self.assertEqual(len(kept), 1)

    def test_a_copy_that_is_asked_nothing_closes_what_it_keeps(self):
        program = (
            "import millrace\n"
            "@millrace.environment('waits', idle_s=0.2)\n"
            "class Waits:\n"
            "    def reset(self, seed): return str(seed)\n"
            "    def step(self, said): ...\n"
            "    def close(self): print('closed')\n"
            "millrace.serve()\n"
        )
        question = {"ask": "reset", "environment": "waits", "settings": {}, "split": "train", "seed": 1}
        environ = {**os.environ, "PYTHONPATH": os.path.join(HERE, "..")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-u", "-c", program], env=environ, text=True, **pipes) as copy:
            copy.stdout.readline()
            copy.stdin.write(json.dumps(question) + "\n")
            copy.stdin.flush()
            self.assertEqual(json.loads(copy.stdout.readline())["step"]["text"], "1")
            self.assertEqual(copy.stderr.readline(), "closed\n")
            copy.stdin.close()

    def test_what_hung_is_closed_aside(self):
        env = mock.Mock(spec=["close"])
        with mock.patch.object(_kept.threading, "Thread") as thread, self.assertRaises(_serve.Hung):
            with _kept.closed_on_failure(env):
                raise _serve.Hung
        self.assertEqual(thread.call_args.kwargs["args"], (env,))
        env.close.assert_not_called()


if __name__ == "__main__":
    unittest.main()
