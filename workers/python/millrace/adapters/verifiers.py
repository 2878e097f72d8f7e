"""Tasksets of verifiers, by the id under which its env server finds them, played by that server over ZMQ and msgpack.

The server runs an episode by itself and asks for the model's turns as from an OpenAI server. That server is here: what
it is asked is the observation, and the policy's words are its answer. State: the task and the turns, played again.
"""

import asyncio
import multiprocessing
import threading
import uuid

from aiohttp import web
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.configs.env import EnvConfig
from verifiers.v1.serve import EnvClient, env_config_data, serve_env
from verifiers.v1.types import SamplingConfig
from verifiers.v1.utils.loaders import load_taskset, resolve_env_config

from .. import environment

MODEL = "policy"
_lock = threading.Lock()
_servers: dict = {}


class Server:
    """One env server, the client that asks it, and the model that it asks; all of one configuration."""

    def __init__(self, taskset, env, address, tasks):
        config = resolve_env_config({**env, "taskset": {**env.get("taskset", {}), "id": taskset}})
        self.tasks = [task.data.model_dump(mode="json") for task in load_taskset(config.taskset).take(tasks)]
        if len(self.tasks) < 2:
            raise ValueError(f"taskset={taskset!r} has tasks={len(self.tasks)}; one at least is kept for evaluation")
        self.episodes, self.process = {}, None
        if address is None:
            spawn = multiprocessing.get_context("spawn")
            found, (ours, lives) = spawn.Queue(), spawn.Pipe()
            given = {"max_workers": 1, "address": "tcp://127.0.0.1:0", "config_data": env_config_data(config)}
            # It ends with this process, however that ends: the pipe closes.
            given.update(address_queue=found, death_pipe=lives)
            self.process, self.lives = spawn.Process(target=serve_env, kwargs=given, daemon=True), ours
            self.process.start()
            lives.close()
            address = found.get(timeout=90)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.do(self.begin(address))

    def do(self, work, seconds=100):
        """Waits for work on the loop's thread; ends early in words when the server has died."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        for _ in range(int(seconds * 2)):
            try:
                return future.result(timeout=0.5)
            except TimeoutError:
                if future.done():
                    raise
                if self.process and not self.process.is_alive():
                    future.cancel()
                    raise RuntimeError(f"the env server died with exit code {self.process.exitcode}") from None
        future.cancel()
        raise TimeoutError(f"the env server gave no answer within {seconds} s")

    async def begin(self, address):
        self.client = EnvClient(address)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/{episode}/v1/chat/completions", self.complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        await self.client.wait_for_server_startup(timeout=90, interval=0.2)

    async def start(self, task):
        """A run of the task, under a name, and what it says first."""
        name, asked = uuid.uuid4().hex, asyncio.Queue()
        client = EvalClientConfig(base_url=f"{self.url}/{name}/v1", api_key_var="MILLRACE_NO_KEY")
        run = asyncio.create_task(self.client.run(client, MODEL, SamplingConfig(), task))
        self.episodes[name] = asked
        run.add_done_callback(lambda _: (asked.put_nowait((None, None)), self.episodes.pop(name, None)))
        return run, asked, await asked.get()

    async def complete(self, request):
        """A model's turn: the observation goes to whoever plays, and the answer is its words."""
        body, asked = await request.json(), self.episodes.get(request.match_info["episode"])
        if asked is None:
            return web.json_response({"error": {"message": "the episode is over"}}, status=410)
        if body.get("tools"):
            names = ", ".join(tool.get("function", {}).get("name", "?") for tool in body["tools"])
            return web.json_response({"error": {"message": f"tools ({names}) are not spoken here, only words"}}, status=400)
        reply = self.loop.create_future()
        asked.put_nowait((body["messages"], reply))
        message = {"role": "assistant", "content": await reply}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        answer = {"id": uuid.uuid4().hex, "object": "chat.completion", "created": 0, "model": MODEL}
        return web.json_response({**answer, "choices": [choice], "usage": usage})

    async def answer(self, asked, reply, said):
        if not reply.done():
            reply.set_result(said)
        return await asked.get()


@environment("verifiers", threads=True, id="taskset")
class Verifiers:
    def __init__(self, taskset, env=None, address=None, tasks=1000):
        key = repr((taskset, env, address, tasks))
        with _lock:
            if key not in _servers:
                _servers[key] = Server(taskset, env or {}, address, tasks)
        self.server, self.run = _servers[key], None

    def reset(self, seed, split):
        held_out = max(1, len(self.server.tasks) // 10)
        tasks = self.server.tasks[-held_out:] if split == "held_out" else self.server.tasks[:-held_out]
        self.run, self.asked, (messages, self.reply) = self.server.do(self.server.start(tasks[seed % len(tasks)]))
        if messages is None:
            raise RuntimeError(f"the episode ended before the policy's first turn: {self._ended()}")
        return _new(messages)

    def step(self, said):
        messages, self.reply = self.server.do(self.server.answer(self.asked, self.reply, said))
        if messages is not None:
            return _new(messages), 0.0, False
        reward = self._ended()
        return "", reward, True, {"success": reward >= 1.0}

    def close(self):
        if self.run is not None:
            self.server.loop.call_soon_threadsafe(self.run.cancel)

    def _ended(self):
        """The reward of the episode, whose failure is no reward."""
        episode = self.run.result()
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or not episode.traces:
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors) or "it left no trace")
        return episode.traces[0].reward


def _new(messages):
    """What was said since the policy's last turn, as text."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    parts = [message.get("content") for message in messages[last + 1 :]]
    texts = [p if isinstance(p, str) else "".join(x.get("text", "") for x in p or ()) for p in parts]
    return "\n".join(text for text in texts if text)
