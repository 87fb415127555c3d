"""One episode in a worker: what the environment has read of a response, and its replies as tokens."""

import asyncio
import logging
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.environment import Environment

from ..tensors.records import Outcome, Prompt
from .adapter import Unfit
from .record import Turn
from .rendering import Opened, Rendering
from .workers.interface import EpisodeWorker, WorkerEnded
from .workers.pool import GRACE_SECONDS

log = logging.getLogger(__name__)

_UNCUT = 1 << 30
"""Tokens of a branch's prompt: one that does not fit into `maxTokens` is left out, as a reply is."""


class EpisodeFailed(Exception):
    """The environment failed at this call; another life of the episode may not."""


class EpisodeEnded(Exception):
    """The episode has no reward, for this reason, which another life would have too."""


@dataclass(frozen=True)
class Reply:
    """The environment's reply to a turn: `tokens` that follow it, or on a `branch` are read in place of all so far;
    none if the episode is `done`, or the reply was `cut` off, as it is longer than any episode."""

    tokens: Sequence[int]
    done: bool
    branch: bool = False
    cut: bool = False


class LiveEpisode:
    """`begin` once, then `step` for each turn in order, and `end`. Each raises WorkerEnded where the process does, and
    EpisodeFailed and EpisodeEnded."""

    def __init__(
        self, worker: EpisodeWorker, number: int, rendering: Rendering, section: Environment
    ) -> None:
        self.worker, self._number, self._rendering, self._section = worker, number, rendering, section
        self.opened = Opened((), conversation=False)
        self.read = array("i")
        """Tokens of the response that the environment has read, with its replies to them."""
        self._prompt: Prompt | None = None
        self._current, self._from = self.opened, 0
        """How the present branch opens, and how much was read before that: the opening's tokens are among `read`, but
        for those of the first one."""
        self._rewards = list[tuple[int, float]]()
        self._seconds = 0.0

    async def begin(self, prompt: Prompt) -> None:
        """Resets the environment; `opened` is how the episode opens."""
        opening = await self._call(do="reset", row=dict(prompt.row))
        try:
            self.opened = await asyncio.to_thread(self._rendering.open, prompt, opening)
        except Unfit as error:
            raise EpisodeEnded(str(error)) from None
        self._prompt, self._current = prompt, self.opened

    async def step(self, turn: Turn) -> Reply:
        """The reply to a turn that follows all that was `read`."""
        before = (*(() if self._from else self.opened.tokens), *self.read[self._from :])
        text = await asyncio.to_thread(self._rendering.turn_text, before, turn.sampled)
        made = await self._call(do="step", **text._asdict())
        tokens: Sequence[int] = ()
        cut = bool(made.get("cut")) and not made["done"]
        if not made["done"] and not cut:
            try:
                tokens = await asyncio.to_thread(self._replied, turn, made)
            except (Unfit, InvalidJob) as error:
                raise EpisodeEnded(str(error)) from None
        self._rewards.append((turn.end - 1, made["reward"]))
        branch = bool(made.get("branch")) and not cut
        if branch:
            self._from = len(self.read) + len(turn.sampled)
        self.read += array("i", [*turn.sampled, *tokens])
        return Reply(tokens, made["done"], branch, cut)

    def _replied(self, turn: Turn, made: Mapping[str, Any]) -> Sequence[int]:
        """The tokens of a reply, or those with which a branch opens."""
        if not made.get("branch"):
            return self._rendering.reply(self._current, turn.sampled, made["messages"])
        assert self._prompt is not None, "the episode has begun"
        opening = {"messages": made["messages"], "text": None, "added": False, "tools": made.get("tools")}
        self._current = self._rendering.open(self._prompt, opening, _UNCUT)
        return self._current.tokens

    async def end(self, *, cut: bool) -> Outcome:
        """Closes the environment; `cut`: a limit ended the episode."""
        try:
            more = (await self._call(do="end", cut=cut))["reward"]
        except WorkerEnded as error:
            if cut:  # a class of TRL's shape had yet to tell the reward
                raise
            log.warning("an episode has its reward, but its environment was not closed: %s", error)
            more = 0.0
        *first, (place, last) = self._rewards
        rewards = (*first, (place, last + more))
        return Outcome(math.fsum(reward for _, reward in rewards), len(rewards), rewards)

    async def close(self) -> None:
        """Closes the environment of an episode that goes on elsewhere, or not at all."""
        await self._call(do="end", cut=False)

    @property
    def turns(self) -> int:
        """Number of turns that the environment has read."""
        return len(self._rewards)

    async def _call(self, **call: Any) -> Mapping[str, Any]:
        seconds = self._section.turn_seconds + (GRACE_SECONDS if self._section.asks_policy else 0.0)
        reply = await self.worker.call({"episode": self._number, **call}, seconds)
        if "failed" in reply:
            raise EpisodeFailed(reply["failed"])
        if "error" in reply:
            raise EpisodeEnded(reply["error"])
        self._seconds += reply["seconds"]
        if self._seconds > (most := self._section.seconds):
            reason = (
                f"the episode's calls took {self._seconds:.0f} s, more than {most} (spec.environment.seconds)"
            )
            raise EpisodeEnded(reason)
        return reply
