"""Episodes of several turns: where a turn ends, the environment replies, and the engine goes on with the next."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.contract.run import Member
from rlhf_api.host.tasks import run_together
from rlhf_api.sections.sampling import Sampling
from rlhf_api.spec import Spec

from ...data.stop_strings import StopStrings
from ...dispatch.outcomes import Interrupted
from ...environments.environments import Environments, OpensOtherwise
from ...tensors.records import Prompt
from ..partial_rollout import PartialRollout, Response
from .engine_client import EngineClient

POLL_SECONDS = 0.5
"""Interval at which who waits for an environment signs progress, seconds: the generator is not late meanwhile."""


class TurnsClient:
    """An engine's client whose responses are episodes: `engine` samples each turn, as a response that it continues.
    Implements `EngineClient`.

    The responses to a prompt go on independently; the first turns of all are one request. Where new weights or a lost
    generator interrupt a turn, the response keeps its tokens and the environment waits for the next call.
    """

    def __init__(
        self,
        engine: EngineClient,
        environments: Environments,
        *,
        sampling: Sampling,
        ends: Sequence[int],
        stops: StopStrings,
        most: int,
    ) -> None:
        """`ends` and `stops`: what ends a turn; `most`: tokens of an episode after its prompt."""
        self._engine, self._environments, self._most = engine, environments, most
        self._longest, self._ends, self._stops = sampling.max_new_tokens, frozenset(ends), stops

    async def ask(self, member: Member, work: PartialRollout, progress: Callable[[], None]) -> PartialRollout:
        """Plays the episodes to their ends."""
        with self._environments.holding(work.prompt.id):
            try:
                await self._open_and_play(member, work, progress)
            except OpensOtherwise:
                work.begin_anew()
                await self._open_and_play(member, work, progress)
        if not work.is_complete:
            raise Interrupted
        return work

    async def listens(self, member: Member) -> bool:
        return await self._engine.listens(member)

    async def _open_and_play(
        self, member: Member, work: PartialRollout, progress: Callable[[], None]
    ) -> None:
        if not work.begun:
            opening = asyncio.ensure_future(self._environments.open(work.prompt))
            try:
                if not await _wait(opening, work, progress):
                    raise Interrupted
            finally:
                opening.cancel()
            work.prompt = opening.result()
        await self._play_all(member, work, progress)

    async def _play_all(self, member: Member, work: PartialRollout, progress: Callable[[], None]) -> None:
        loop, fresh = asyncio.get_running_loop(), not work.begun
        over: list[asyncio.Future[bool]] = [loop.create_future() for _ in work.responses]
        playing = [
            self._play(member, work, index, over[index], progress, fresh=fresh) for index in work.unfinished
        ]
        if fresh:
            places = {id(response): index for index, response in enumerate(work.responses)}

            def ended(_prompt: Prompt, response: Response) -> None:
                response.end = None
                _settle([over[places[id(response)]]], is_over=True)

            async def sample_first() -> None:
                first = replace(work, responses=[*work.responses], ended=ended, most=self._most)
                try:
                    await self._sample(member, first, progress)
                finally:
                    _settle(over, is_over=False)

            playing.append(sample_first())
        else:
            for index in work.unfinished:
                over[index].set_result(self._is_over(work.prompt, work.responses[index]))
        await run_together(playing)

    async def _play(
        self,
        member: Member,
        work: PartialRollout,
        index: int,
        over: "asyncio.Future[bool]",
        progress: Callable[[], None],
        *,
        fresh: bool,
    ) -> None:
        """One episode, from its present turn on; `over`: that has all its tokens, sampled elsewhere if `fresh`. Returns
        early where it is interrupted."""
        is_over = await over
        while work.responses[index].end is None:
            if not is_over:
                if fresh or work.closing():
                    return
                if not await self._sample_next(member, work, index, progress):
                    return
            is_over = fresh = False
            if not await self._reply(work, index, progress):
                return

    async def _reply(self, work: PartialRollout, index: int, progress: Callable[[], None]) -> bool:
        """Has the environment reply to the last turn; False if the round is closed before it has."""
        response = work.responses[index]
        reply = self._environments.reply(work.prompt, index, response.tokens, response.sampled)
        if not await _wait(reply, work, progress):
            return False
        work.go_on(index, self._environments.take(work.prompt, index))
        return True

    async def _sample_next(
        self, member: Member, work: PartialRollout, index: int, progress: Callable[[], None]
    ) -> bool:
        """Samples the rest of a response's present turn; False where it is interrupted."""
        response, is_over = work.responses[index], False

        def ended(_prompt: Prompt, response: Response) -> None:
            nonlocal is_over
            response.end, is_over = None, True

        prompt = replace(work.prompt, id=f"{work.prompt.id}/{index}")  # which seeds the request
        turn = replace(work, prompt=prompt, responses=[response], ended=ended, most=self._most)
        await self._sample(member, turn, progress)
        return is_over

    async def _sample(self, member: Member, turn: PartialRollout, progress: Callable[[], None]) -> None:
        with suppress(Interrupted):  # its turns may be over all the same
            await self._engine.ask(member, turn, progress)

    def _is_over(self, prompt: Prompt, response: Response) -> bool:
        """True if the present turn has all its tokens, as far as these say: the engine's reply, to an earlier request,
        is not known here."""
        start = response.turn_start
        turn = response.tokens[start:]
        if not turn:
            return False
        if turn[-1] in self._ends or len(turn) >= self._longest or len(response.tokens) >= self._most:
            return True
        if not self._stops.strings:
            return False
        return self._stops.ending((*prompt.tokens, *response.tokens[:start]), turn) is not None


def _settle(turns: "Sequence[asyncio.Future[bool]]", *, is_over: bool) -> None:
    for each in turns:
        if not each.done():
            each.set_result(is_over)


def turns_client(
    engine: EngineClient,
    environments: Environments,
    spec: Spec,
    tokenizer: PreTrainedTokenizerBase,
    ends: Sequence[int],
) -> TurnsClient:
    """A client whose responses are episodes with the job's environment; `engine` samples their turns; `ends`: tokens
    that end one."""
    assert spec.environment is not None, "the job has one"
    stops, most = StopStrings(tokenizer, spec.sampling.stop), spec.environment.max_tokens
    return TurnsClient(engine, environments, sampling=spec.sampling, ends=ends, stops=stops, most=most)


async def _wait(future: "asyncio.Future[Any]", work: PartialRollout, progress: Callable[[], None]) -> bool:
    """Waits for a future, which goes on if this is cancelled; False if the round is closed before."""
    while not future.done():
        if work.closing():
            return False
        await asyncio.wait([future], timeout=POLL_SECONDS)
        progress()
    return True
