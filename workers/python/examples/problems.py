"""Problems from a file whose answers math-verify compares.

pip install math-verify
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import millrace  # noqa: E402


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
