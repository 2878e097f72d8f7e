"""A taskset of verifiers as its users write them: a number to guess in three turns, hinted at by the environment."""

import random

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult, SubprocessConfig


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    pass


class GuessConfig(vf.TasksetConfig):
    fault: str = ""


class GuessTaskset(vf.Taskset[GuessTask, GuessConfig]):
    def load(self):
        for i in range(100):
            number = random.Random(i).randrange(1, 9)
            yield GuessTask(GuessData(name=f"guess#{i}", prompt=f"Task {i}: guess a number from 1 to 8.", number=number), self.config.task)


class GuessHarnessConfig(vf.HarnessConfig):
    pass


class GuessHarness(vf.Harness[GuessHarnessConfig]):
    """A chat loop within the server's own process."""

    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        _, prompt = self.resolve_prompt(data)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [message_to_wire(m) for m in prompt]
        async with httpx.AsyncClient(timeout=None) as client:
            body = {"model": ctx.model, "messages": messages}
            answer = await client.post(f"{endpoint}/chat/completions", json=body, headers={"Authorization": f"Bearer {secret}"})
            answer.raise_for_status()
        return ProgramResult(exit_code=0, stdout="", stderr="")


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(runtime=SubprocessConfig())


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents):
        reward = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for turn in range(3):
                if segment.terminated:
                    break
                if self.config.taskset.fault == "raise":
                    raise RuntimeError("the board is broken")
                if self.config.taskset.fault == "die":
                    import os

                    os._exit(3)
                guess = int("0" + "".join(c for c in segment.last_reply if c.isdigit())[:4])
                if guess == task.data.number:
                    reward = 1.0 - 0.25 * turn
                    break
                if turn < 2:
                    segment = await interaction.turn("higher" if guess < task.data.number else "lower")
        interaction.trace.record_reward("guessed", float("nan") if self.config.taskset.fault == "nan" else reward, 1.0)


__all__ = ["GuessTaskset", "GuessHarness", "GuessEnv"]
