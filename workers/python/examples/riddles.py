"""A riddle and a taste: an environment and a reward of one's own."""

import os
import random
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import millrace  # noqa: E402


@millrace.environment("larger")
class Larger:
    """Which of two numbers is larger? A wrong answer may be mended once."""

    def __init__(self, largest=99):
        self.largest = largest

    def reset(self, seed, split):
        # A start state of training never turns up in evaluation: their sums are even and odd.
        numbers = random.Random(f"{split} {seed}")
        odd = split == "held_out"
        self.tries = 0
        while True:
            self.pair = numbers.sample(range(self.largest + 1), 2)
            if sum(self.pair) % 2 == odd:
                return f"Which is larger, {self.pair[0]} or {self.pair[1]}? Answer with the number only."

    def step(self, said):
        self.tries += 1
        found = re.findall(r"\d+", said)
        right = bool(found) and int(found[-1]) == max(self.pair)
        info = {"success": right, "valid": bool(found)}
        return "No. Try once more.", float(right), right or self.tries == 2, info


@millrace.reward("brevity")
def brevity(rollout, words=4):
    """1 where every turn had at most so many words, else 0."""
    said = [utterance.text for utterance in rollout.conversation if utterance.speaker == "policy"]
    return float(all(len(text.split()) <= words for text in said))


if __name__ == "__main__":
    millrace.serve()
