"""Runs answer.py, then a test in the same names. It comes by the standard input after a line that nobody can guess; that
line is written once the test ran to its end, so that an answer that ends the program early passes nothing."""

import os
import sys

mark, test = sys.stdin.read().split("\n", 1)
# The answer does not read the test from here.
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def run(mark, test):
    names = {"__name__": "answer", "__builtins__": __builtins__}
    with open("answer.py", encoding="utf-8") as answer:
        exec(compile(answer.read(), "answer.py", "exec"), names)
    exec(compile(test, "test", "exec"), names)
    sys.stdout.flush()
    os.write(1, b"\n" + mark.encode() + b"\n")


run(mark, test)
