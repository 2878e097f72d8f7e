"""Environments of gymnasium whose action is one of a few: FrozenLake-v1 for example.

The text is the drawing of render_mode="ansi" where there is one, else the observation as JSON. An action is the last
number of a turn, or the last of the names in `actions`. State: of the toy texts the cell, the generator and the time,
written and read back; of all others seed and actions, played again.
"""

import json
import re
from collections import defaultdict

import gymnasium
import numpy

from .. import environment
from ._seeds import draw_from, seed_of

# Of a terminal: a colour shows where the player is.
COLOUR, PLAIN = re.compile(r"(\x1b\[(?!0m)[\d;]+m)+"), re.compile(r"(\x1b\[0m)+")
# What makes up the state, beside the generator and the time.
STATE = {
    "FrozenLakeEnv": ("s", "lastaction"),
    "CliffWalkingEnv": ("s", "lastaction"),
    "TaxiEnv": ("s", "lastaction", "taxi_orientation", "fickle_step"),
}
# Making one takes longer than an episode, and a reset with a seed is a fresh start by gymnasium's own rule.
_free: dict = defaultdict(list)


@environment("gymnasium", id="id")
class Gymnasium:
    def __init__(self, id, actions=(), ask="", **config):
        self.key = repr((id, sorted(config.items())))
        self.env = _free[self.key].pop() if _free[self.key] else _make(id, config)
        space = self.env.action_space
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise TypeError(f"id={id!r} has actions {space}; one that is said in words must be one of a few")
        self.first, self.count = int(space.start), int(space.n)
        self.names = [str(name).lower() for name in actions]
        if self.names and len(self.names) != self.count:
            raise ValueError(f"actions={list(actions)!r} names {len(self.names)} of the {self.count} actions of {id!r}")
        words = ", ".join(self.names) or f"a number from {self.first} to {self.first + self.count - 1}"
        self.ask = ask or f"Answer with one of: {words}." if self.names else ask or f"Answer with {words}."
        self.seed = self.turn = 0
        self.is_whole = False

    def reset(self, seed, split):
        self.seed = seed_of(seed, split)
        draw_from(self.seed, 0)
        observation, info = self.env.reset(seed=self.seed)
        self.is_whole = True
        return f"{self._say(observation)}\n{self.ask}", info

    def step(self, said):
        action = self._action(said)
        if action is None:
            return f"That is no action. {self.ask}", 0.0, False, {"valid": False}
        self.turn += 1
        draw_from(self.seed, self.turn)
        self.is_whole = False
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.is_whole = True
        success = bool(terminated and not isinstance(reward, str) and reward > 0)
        return self._say(observation), reward, terminated, truncated, {**info, "success": success, "valid": True}

    def close(self):
        # One that failed is no fresh start for another episode.
        if self.is_whole:
            _free[self.key].append(self.env)
        else:
            self.env.close()

    def save(self):
        """None for what is played again."""
        inner = self.env.unwrapped
        if type(inner).__name__ not in STATE or type(inner).__module__.split(".")[0] != "gymnasium":
            return None
        fields = {name: _plain(getattr(inner, name)) for name in STATE[type(inner).__name__]}
        # As text: its numbers have 128 bits, and JSON's have 53.
        drawn = json.dumps(inner.np_random.bit_generator.state)
        return {"fields": fields, "drawn": drawn, "turn": self.turn, "seed": self.seed}

    def load(self, saved):
        self.env.reset(seed=0)
        inner = self.env.unwrapped
        for name, value in saved["fields"].items():
            setattr(inner, name, value)
        inner.np_random.bit_generator.state = json.loads(saved["drawn"])
        self.turn, self.seed = saved["turn"], saved["seed"]
        layer = self.env
        while layer is not inner:
            if "_elapsed_steps" in vars(layer):
                layer._elapsed_steps = self.turn
            layer = layer.env
        self.is_whole = True

    def _action(self, said):
        if self.names:
            found = [name for name in re.findall(r"[\w-]+", said.lower()) if name in self.names]
            return self.first + self.names.index(found[-1]) if found else None
        found = [int(number) for number in re.findall(r"-?\d{1,9}", said)]
        return found[-1] if found and self.first <= found[-1] < self.first + self.count else None

    def _say(self, observation):
        if self.env.render_mode == "ansi":
            return PLAIN.sub("]", COLOUR.sub("[", self.env.render())).strip("\n")
        if isinstance(observation, str):
            return observation
        return json.dumps(_plain(observation), allow_nan=False)


def _make(id, config):
    kind = gymnasium.spec(id)
    made = gymnasium.make(kind, **config)
    if "ansi" in (made.metadata.get("render_modes") or ()) and "render_mode" not in config:
        made = gymnasium.make(kind, render_mode="ansi", **config)
    return made


def _plain(value):
    """Of numpy's arrays and numbers, and gymnasium's dicts and tuples of them, what JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(inner) for inner in value]
    if isinstance(value, numpy.ndarray):
        return [_plain(inner) for inner in value.tolist()]
    if isinstance(value, numpy.generic):
        value = value.item()
    return round(value, 4) if isinstance(value, float) else value
