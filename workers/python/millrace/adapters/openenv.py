"""Environments behind OpenEnv's own server, over its WebSocket: each episode is a session of its client.

`action` and `observation` name the fields that hold words; without `observation` the whole observation is said as JSON.
State: seed and actions, played again in a new session; a live session is kept where it is.
"""

import asyncio
import concurrent.futures
import json
import threading

from openenv.core import GenericEnvClient

from .. import Retry, environment
from ._seeds import seed_of

# Seconds: for one answer of the server, for the end of a session, and until a server that is away is asked again.
ANSWER, CLOSED, AWAY = 100, 5, 15
_loop = asyncio.new_event_loop()
threading.Thread(target=_loop.run_forever, daemon=True).start()


@environment("openenv", threads=True, id="url")
class OpenEnv:
    def __init__(self, url, action="message", observation=None, reset=None, unrewarded=None):
        self.url, self.action, self.observation, self.options = url, action, observation, reset or {}
        self.unrewarded = unrewarded
        self.client = None

    def reset(self, seed, split):
        self._do(self._connect())
        result = self._do(self._ask("reset", seed=seed_of(seed, split), **self.options))
        return self._say(result.observation)

    def step(self, said):
        result = self._do(self._ask("step", {self.action: said}))
        reward, done = result.reward, bool(result.done)
        if reward is None:
            # On this wire a step without a reward and one whose reward is NaN look the same.
            reward = None if done else self.unrewarded
            if reward is None:
                raise ValueError("reward=null: there is none, or it is NaN; unrewarded = 0.0 allows it before the end")
        return self._say(result.observation), reward, done

    def close(self):
        client, self.client = self.client, None
        if client is not None:
            # Waited for: the next episode may need its session.
            closed = asyncio.run_coroutine_threadsafe(_closed(client), _loop)
            concurrent.futures.wait([closed], timeout=CLOSED)

    async def _ask(self, what, *values, **named):
        return await getattr(self.client, what)(*values, **named)

    async def _connect(self):
        client = GenericEnvClient(base_url=self.url)
        try:
            await client.connect()
        except Exception as error:
            await client.close()
            raise Retry(f"failed to connect to url={self.url}: {error}", AWAY) from error
        self.client = client

    def _do(self, work):
        try:
            return asyncio.run_coroutine_threadsafe(work, _loop).result(timeout=ANSWER)
        except TimeoutError:
            self.close()
            raise TimeoutError(f"url={self.url} gave no answer within {ANSWER} s") from None

    def _say(self, observation):
        if self.observation is None:
            return json.dumps(observation, allow_nan=False)
        if self.observation not in observation:
            raise KeyError(f"observation={self.observation!r} is none of its fields: {', '.join(sorted(observation))}")
        return observation[self.observation]


async def _closed(client):
    await client.close()
