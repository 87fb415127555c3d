"""Plays one game of TextArena for a single player, in an episode: the game's prompt opens it, each turn of the model is
an action, and what the game then says is the reply."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..step import Step
from .row_seed import seed_of

try:
    import textarena
except ImportError as error:
    raise ImportError(f"TextArena is missing; run `pip install textarena` ({error})") from error

_PLAYER = 0


class TextArenaGame:
    """An action is a whole turn, to which TextArena's own wrapper adds the brackets that it lacks. The reward is the
    game's, at its end."""

    def __init__(self, *, game: str, **settings: Any) -> None:
        """`game`: its name, such as `GuessTheNumber-v0`; `settings`: its own."""
        self._game = textarena.make(game, **settings)
        self._says = self._game
        while isinstance(self._says, textarena.Wrapper):  # which repeat all that was said before
            self._says = self._says.env
        self._random = random.getstate()

    def reset(self, row: Mapping[str, Any]) -> str:
        seed = seed_of(row)
        self._random = random.Random(seed).getstate()
        with self._own_random():
            try:
                self._game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                raise ValueError(f"only games for a single player are supported: {error}") from None
        return self._message()

    def step(self, message: Mapping[str, Any]) -> Step:
        with self._own_random():
            done, _ = self._game.step(action=message["content"])
        if done:
            return Step(reward=self._reward(), done=True)
        return Step(self._message())

    def _reward(self) -> float:
        rewards, outcomes = self._game.close()
        reward = rewards[_PLAYER]
        if isinstance(
            reward, str
        ):  # Countdown and others exchange the reward of a wrong move with its reason
            reward = float(outcomes[_PLAYER]["reason"].removeprefix("Invalid Move: "))
        return float(reward)

    def _message(self) -> str:
        """Messages of the game since it was last read."""
        _, observed = self._says.get_observation()
        return "\n".join(text for sender, text, *_ in observed if sender == textarena.GAME_ID)

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Meanwhile Python's random numbers, which all games of the process share, are this game's own."""
        others = random.getstate()
        random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(others)
