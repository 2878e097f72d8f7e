"""Games and problems of GEM (gem-llm), by their names: game:GuessTheNumber-v0-easy for example.

State: seed and actions, played again. GEM draws from the process's generators; each turn is given its own seed.
"""

import gem

from .. import environment
from ._seeds import draw_from, seed_of


@environment("gem", id="game")
class Gem:
    def __init__(self, game, **config):
        if game not in gem.envs.registration.ENV_REGISTRY:
            raise ValueError(f"game={game!r} is not among GEM's {len(gem.envs.registration.ENV_REGISTRY)} environments")
        # It may draw while it is made.
        draw_from(0, 0)
        self.env = gem.make(game, **config)
        self.seed = self.turn = 0

    def reset(self, seed, split):
        self.seed = seed_of(seed, split)
        draw_from(self.seed, 0)
        text, info = self.env.reset(seed=self.seed)
        return _with_suffix(text, info), info

    def step(self, said):
        self.turn += 1
        draw_from(self.seed, self.turn)
        text, reward, terminated, truncated, info = self.env.step(said)
        done = terminated or truncated
        text = text if done else _with_suffix(text, info)
        # Its games give 1 for the goal and less for what comes near it.
        success = bool(done and not isinstance(reward, str) and reward >= 1)
        own = info if isinstance(info, dict) else {}
        return text, reward, terminated, truncated, {**own, "success": success, "valid": True}


def _with_suffix(text, info):
    # GEM's own wrappers put it there: the board, and what to do.
    suffix = info.get("suffix") if isinstance(info, dict) else None
    return f"{text}\n{suffix}" if suffix and isinstance(text, str) else text
