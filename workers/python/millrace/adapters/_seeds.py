"""Seeds for packages that draw from the process's own generators."""

import random
import sys


def seed_of(seed: int, split: str) -> int:
    """A seed below 2**31, as every package takes it: even ones for training, odd ones for evaluation."""
    return (2 * seed + (split == "held_out")) % (1 << 31)


def draw_from(seed: int, turn: int) -> None:
    """Makes what follows draw from the episode's seed and turn alone, whichever episodes the process plays between."""
    number = (seed * 1_000_003 + turn) % (1 << 32)
    random.seed(number)
    # Where nobody imported numpy, nobody draws from it.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
