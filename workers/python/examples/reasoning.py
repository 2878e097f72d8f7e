"""Puzzles of reasoning-gym, games of GEM, and problems from a file whose answers math-verify compares.

pip install reasoning-gym gem-llm math-verify
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import millrace  # noqa: E402

# Seeds of evaluation lie beyond those of training, so that no puzzle is in both.
HELD_OUT = 1 << 40


def seed_of(seed, split):
    """A seed as these packages take them, apart for training and evaluation."""
    return seed % (1 << 30) + (HELD_OUT if split == "held_out" else 0)


@millrace.environment("reasoning_gym")
class ReasoningGym:
    """One question of a dataset; the reward is the dataset's own score of the answer, 0 to 1."""

    def __init__(self, dataset, **config):
        self.dataset, self.config = dataset, config

    def reset(self, seed, split):
        import reasoning_gym

        made = reasoning_gym.create_dataset(self.dataset, size=1, seed=seed_of(seed, split), **self.config)
        self.made, self.entry = made, made[0]
        return f"{self.entry['question']}\nEnd with the answer alone, after the word Answer:"

    def step(self, said):
        answer = said.rpartition("Answer:")[2].strip()
        score = self.made.score_answer(answer=answer, entry=self.entry)
        return "", score, True, {"success": score >= 1.0, "valid": "Answer:" in said}


@millrace.environment("gem")
class Gem:
    """A game of GEM by its name, game:GuessTheNumber-v0-easy for example."""

    def __init__(self, game, **config):
        import gem

        self.env = gem.make(game, **config)

    def reset(self, seed, split):
        return self.env.reset(seed=seed_of(seed, split) % (1 << 31))

    def step(self, said):
        return self.env.step(said)


@millrace.environment("problems")
class Problems:
    """Rows of a JSONL file with "question" and "answer"; the last `held_out` of them are for evaluation."""

    def __init__(self, path, held_out=64):
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        at = len(rows) - held_out
        if not 0 < at < len(rows):
            raise ValueError(f"{path} has rows={len(rows)}; held_out={held_out} must leave some on either side")
        self.rows = {"train": rows[:at], "held_out": rows[at:]}

    def reset(self, seed, split):
        rows = self.rows[split]
        self.row = rows[seed % len(rows)]
        return f"{self.row['question']}\nPut the answer into \\boxed{{}}."

    def step(self, said):
        from math_verify import parse, verify

        answer = parse(said)
        return "", float(verify(parse(self.row["answer"]), answer)), True, {"valid": bool(answer)}


if __name__ == "__main__":
    millrace.serve()
