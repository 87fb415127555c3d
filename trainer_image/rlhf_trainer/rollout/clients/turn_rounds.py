"""Episodes whose turns the trainer samples, in rounds: a turn of each as a batch, then all environments' replies.

In rounds, what is drawn depends on no environment's speed: a step that is repeated has the same episodes.
"""

import asyncio
import threading
from array import array
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rlhf_api.host.event_loop import EventLoop
from rlhf_api.host.tasks import end_all

from ...dispatch.outcomes import Refused
from ...environments.environments import Environments, OpensOtherwise
from ...local_generation.sampler import Sampled
from ...process import progress
from ...tensors.records import Prompt
from ..partial_rollout import PartialRollout, Response

POLL_SECONDS = 0.5
"""Interval at which a stop is noticed while environments reply, seconds."""
Sample = Callable[[list[Prompt], int], list[Sampled]]
"""Samples one turn of at most so many tokens after each prompt; nothing once the run is to stop."""


class TurnRounds:
    """Plays episodes of `environments`, whose coroutines run on `loop`."""

    def __init__(self, environments: Environments, loop: EventLoop, stop: threading.Event) -> None:
        self._environments, self._loop, self._stop = environments, loop, stop
        self._section = environments.section

    def play(
        self, works: Sequence[PartialRollout], sample: Sample, longest: int, version: int
    ) -> dict[str, str]:
        """Plays the works' episodes to their ends, or until `stop` is set; returns why prompts open none, by their ids.
        `longest`: tokens of a turn; `version`: of the weights that sample."""
        refused: dict[str, str] = {}
        for group in self._groups(works):
            refused |= self._loop.run(self._open(group))
            while not self._stop.is_set():
                turns = [
                    (work, index)
                    for work in group
                    if work.prompt.id not in refused
                    for index in work.unfinished
                ]
                if not turns:
                    break
                self._sample(turns, sample, longest, version)
                if not self._stop.is_set():
                    refused |= self._loop.run(self._reply(turns))
        return refused

    def _groups(self, works: Sequence[PartialRollout]) -> Iterator[list[PartialRollout]]:
        """Works whose episodes may all live at once; of one prompt that has more, some make way in each round."""
        group, count = list[PartialRollout](), 0
        for work in works:
            if group and count + len(work.responses) > self._section.most_episodes:
                yield group
                group, count = [], 0
            group.append(work)
            count += len(work.responses)
        if group:
            yield group

    def _sample(
        self, turns: Sequence[tuple[PartialRollout, int]], sample: Sample, longest: int, version: int
    ) -> None:
        responses = [work.responses[index] for work, index in turns]
        rooms = [min(longest, self._section.max_tokens - len(response.tokens)) for response in responses]
        prompts = [
            replace(work.prompt, tokens=response.before(work.prompt))
            for (work, _), response in zip(turns, responses, strict=True)
        ]
        for response, sampled, room in zip(responses, sample(prompts, max(rooms)), rooms, strict=True):
            _append(response, sampled, room, version)

    async def _open(self, works: Sequence[PartialRollout]) -> dict[str, str]:
        """Opens the prompts' episodes; returns why some open none."""

        async def open_one(work: PartialRollout) -> None:
            try:
                work.prompt = await self._environments.open(work.prompt)
            except Refused as error:
                refused[work.prompt.id] = str(error)

        refused: dict[str, str] = {}
        await self._wait_for([open_one(work) for work in works])
        return refused

    async def _reply(self, turns: Sequence[tuple[PartialRollout, int]]) -> dict[str, str]:
        """Has the environments reply to these turns; returns why some prompts open no episode any more."""
        otherwise: dict[str, PartialRollout] = {}

        async def reply_to(work: PartialRollout, index: int) -> None:
            response = work.responses[index]
            reply = self._environments.reply(work.prompt, index, response.tokens, response.sampled)
            await asyncio.wait([reply])
            try:
                work.go_on(index, self._environments.take(work.prompt, index))
            except OpensOtherwise:
                otherwise[work.prompt.id] = work

        await self._wait_for([reply_to(work, index) for work, index in turns])
        for work in otherwise.values():
            work.begin_anew()
        return await self._open([*otherwise.values()])

    async def _wait_for(self, coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Raises the first error; leaves what still goes on once the run is to stop."""
        waiting = {asyncio.ensure_future(each) for each in coroutines}
        try:
            while waiting and not self._stop.is_set():
                ended, waiting = await asyncio.wait(
                    waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION
                )
                progress.sign()
                for task in ended:
                    task.result()
        finally:
            await end_all(waiting)


def _append(response: Response, sampled: Sampled, room: int, version: int) -> None:
    """Adds a turn, cut to `room` tokens."""
    counts, kept_tokens = (array("i", each.tolist()) for each in (sampled.counts, sampled.kept))
    if len(sampled.tokens) > room:
        del kept_tokens[sum(counts[:room]) :], counts[room:]
    tokens, logprobs = sampled.tokens[:room].tolist(), sampled.logprobs[:room].tolist()
    response.add(array("i", tokens), array("f", logprobs), version, counts, kept_tokens)
