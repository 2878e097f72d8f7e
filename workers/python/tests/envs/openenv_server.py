"""A server of OpenEnv as its users write them, after `openenv init`: a number to guess, with seeds. Prints its port.

`openenv_server.py [SESSIONS]`: so many sessions at once.
"""

import os
import random
import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class GuessAction(Action):
    message: str


class GuessObservation(Observation):
    text: str = ""


class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self.chance, self.turns = random.Random(0), 0

    def reset(self, seed=None, episode_id=None, **_):
        self.chance, self.turns = random.Random(seed), 0
        self.number = self.chance.randrange(1, 9)
        return GuessObservation(text=f"Guess a number from 1 to 8; it was drawn with {seed}.", done=False, reward=None)

    def step(self, action):
        self.turns += 1
        if action.message == "raise":
            raise RuntimeError("the board is broken")
        if action.message == "die":
            os._exit(3)
        guess = int("0" + "".join(c for c in action.message if c.isdigit())[:4])
        done = guess == self.number or self.turns == 3
        text = "right" if guess == self.number else "higher" if guess < self.number else "lower"
        reward = float("nan") if action.message == "nan" else float(guess == self.number)
        return GuessObservation(text=text, done=done, reward=reward)

    @property
    def state(self):
        return State(episode_id="", step_count=self.turns)


sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 256
app = create_app(GuessEnvironment, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=sessions)

if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
