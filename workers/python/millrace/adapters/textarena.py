"""Games of TextArena for one player, by their names: GuessTheNumber-v0 for example.

State: seed and actions, played again. TextArena draws from the process's generators; each turn is given its own seed.
"""

import textarena

from .. import environment
from ._seeds import draw_from, seed_of


@environment("textarena", id="game")
class TextArena:
    def __init__(self, game, **config):
        # It may draw while it is made, and prints while it makes some boards.
        draw_from(0, 0)
        self.env = textarena.make(game, **config)
        self.seed = self.turn = 0
        self.seen = ""

    def reset(self, seed, split):
        self.seed = seed_of(seed, split)
        draw_from(self.seed, 0)
        self.env.reset(num_players=1, seed=self.seed)
        return self._observe()

    def step(self, said):
        self.turn += 1
        draw_from(self.seed, self.turn)
        done, _info = self.env.step(action=said)
        if not done:
            return self._observe(), 0.0, False, {"valid": not self._said_invalid()}
        rewards, game_info = self.env.close()
        if not rewards or 0 not in rewards:
            raise ValueError(f"the game is over without a reward for its player: rewards={rewards!r}")
        info = game_info[0]
        success, valid = rewards[0] >= 1, not info.get("invalid_move", False)
        return str(info.get("reason", "")), rewards[0], True, {"success": success, "valid": valid}

    def _observe(self):
        """What is new: some wrappers say all of the game again each turn, which the rollout holds already."""
        _player, text = self.env.get_observation()
        if not isinstance(text, str):
            raise TypeError(f"observation={text!r:.200} is no text; choose a game with a wrapper, as {self.env.env_id}")
        new = text[len(self.seen) :] if text.startswith(self.seen) else text
        self.seen = text
        return new.strip()

    def _said_invalid(self):
        # Its state counts the invalid moves in a row.
        return getattr(self.env.state, "error_count", 0) > 0
