"""An environment that stays: python3 -m unittest discover workers/python/tests"""

import json
import os
import sys
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))

from millrace import _ask, _live, _serve  # noqa: E402


class Counts:
    """Truncated after `turns`, terminated by the word stop."""

    made: list = []

    def __init__(self, game="short"):
        if game not in ("short", "long"):
            raise ValueError(f"game={game!r} is neither short nor long")
        self.turns = {"short": 2, "long": 20}[game]
        Counts.made.append(self)

    def reset(self, seed):
        self.at = seed
        return f"at {seed}", {"seed": seed}

    def step(self, said):
        if said == "raise":
            raise KeyError("no such move")
        self.at, self.turns = self.at + 1, self.turns - 1
        values = {"nan": float("nan"), "text": "1", "list": [1]}
        info = {"odd": float("inf"), "set": {1}, "self": None, "set_of": object} if said == "odd" else {"turns": self.turns}
        text = "x" * 1_000_000 if said == "long" else f"at {self.at}"
        return text, values.get(said, 0.5), said == "stop", self.turns == 0, info

    def close(self):
        Counts.made.remove(self)


class LiveEnvironments(unittest.TestCase):
    def setUp(self):
        Counts.made.clear()
        known = {"counts": _ask.Episodes(Counts, id="game"), "plain": _ask.Episodes(Counts)}
        self.enterContext(mock.patch.dict(_ask.environments, known, clear=True))
        self.enterContext(mock.patch.object(_serve, "_live", _live.Live()))

    def ask(self, what, **fields):
        return json.loads(_serve.answer({"ask": f"live_{what}", **fields}))

    def live(self, what, **fields):
        return self.ask(what, **fields)["live"]

    def refused(self, what, **fields):
        return self.ask(what, **fields)["refused"]["reason"]

    def test_the_five_values_arrive_as_they_were_given(self):
        self.live("make", id="counts/short")
        self.assertEqual(self.live("reset", seed=7), {"observation": "at 7", "info": {"seed": 7}})
        first = {"observation": "at 8", "reward": 0.5, "terminated": False, "truncated": False, "info": {"turns": 1}}
        self.assertEqual(self.live("step", said="on"), first)
        last = self.live("step", said="on")
        self.assertEqual((last["terminated"], last["truncated"]), (False, True))
        self.assertIn("reset it first", self.refused("step", said="on"))
        self.live("reset", seed=7)
        self.assertEqual(self.live("step", said="on"), first)
        told = self.live("step", said="stop")
        self.assertEqual((told["terminated"], told["truncated"]), (True, True))
        self.assertEqual(Counts.made, [])

    def test_a_fault_ends_the_episode_in_words_and_a_reset_begins_another(self):
        self.live("make", id="long")
        self.assertIn("reset it first", self.refused("step", said="on"))
        words = {"raise": "no such move", "nan": "not finite", "text": "is no number", "list": "TypeError", "long": "1000000"}
        for said, expected in words.items():
            self.live("reset", seed=1)
            self.assertIn(expected, self.refused("step", said=said))
            self.assertIn("reset it first", self.refused("step", said="on"))
        self.live("reset", seed=1)
        info = self.live("step", said="odd")["info"]
        self.assertEqual((info["odd"], info["set"], info["set_of"]), (None, [1], "<class 'object'>"))

    def test_an_id_is_a_name_or_what_one_environment_knows(self):
        for env_id, settings in [("plain", {}), ("counts/long", {"game": "long"}), ("short", {"game": "short"})]:
            self.assertEqual(_live.resolve(env_id)[1], settings)
        self.assertIn("neither short nor long", self.refused("make", id="../short"))
        _ask.environments["other"] = _ask.Episodes(Counts, id="game")
        self.assertIn("none of: counts/ID, other/ID, plain", self.refused("make", id="short"))

    def test_info_is_what_json_can_say(self):
        endless: dict = {}
        endless["endless"] = [endless]
        self.assertLess(len(json.dumps(_live.plain(endless))), 1_000)
        self.assertEqual(_live.plain({1: (1 << 80, "\ud800", b"x")}), {"1": [str(1 << 80), "?", "b'x'"]})


if __name__ == "__main__":
    unittest.main()
