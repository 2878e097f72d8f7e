"""Questions of reasoning-gym, by a dataset's name: chain_sum for example. The reward is the dataset's own score, 0 to 1.

State: the seed, which makes the question again.
"""

import reasoning_gym

from .. import environment
from ._seeds import draw_from, seed_of


@environment("reasoning_gym", id="dataset")
class ReasoningGym:
    def __init__(self, dataset, ask="End with the answer alone, after the word Answer:", **config):
        self.dataset, self.ask, self.config = dataset, ask, config

    def reset(self, seed, split):
        # Some datasets draw from the process's generators beside their own.
        draw_from(seed_of(seed, split), 0)
        self.made = reasoning_gym.create_dataset(self.dataset, size=1, seed=seed_of(seed, split), **self.config)
        self.entry = self.made[0]
        return f"{self.entry['question']}\n{self.ask}"

    def step(self, said):
        _, marked, answer = said.rpartition("Answer:")
        score = self.made.score_answer(answer=answer.strip(), entry=self.entry)
        return "", score, True, {"success": score >= 1.0, "valid": bool(marked)}
