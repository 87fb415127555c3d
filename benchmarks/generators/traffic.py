"""Answers under way in a vLLM server while something else is measured."""

import asyncio
import time
from itertools import chain, count, pairwise

from rlhf_api.contract.run import Member
from rlhf_api.sections.sampling import Sampling
from rlhf_trainer.dispatch.outcomes import Interrupted
from rlhf_trainer.rollout.clients.vllm_client import STREAM_INTERVAL, VllmClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.tensors.records import Prompt
from rlhf_trainer.transport.http import HttpClient

NUMBERS = count()


class Load:
    """`answers` answers of `tokens` tokens in generation at a time, asked as the trainer does and continued where new
    weights interrupt them. The first one's tokens are sent as they come, those of the others `interval` at a time, so
    that the first shows when tokens are computed under a load of the usual kind."""

    def __init__(
        self, http: HttpClient, member: Member, answers: int, tokens: int, interval: int = STREAM_INTERVAL
    ) -> None:
        self.works: list[PartialRollout] = []
        self._first: list[list[float]] = []
        self._all: list[list[float]] = []  # when the tokens of each answer came
        self._http, self._member = http, member
        sampling = Sampling.model_validate({"maxNewTokens": tokens, "minNewTokens": tokens})
        self._tasks = []
        for i in range(answers):
            every = interval if i else 1
            client = VllmClient(http, sampling=sampling, seed=1, ends=(), stream_interval=every)
            self._tasks.append(http.start(self._answer(client, first=not i)))
        time.sleep(3.0 if answers > 8 else 0.5)

    async def _answer(self, client: VllmClient, *, first: bool) -> None:
        while True:
            number = next(NUMBERS)  # no two prompts share a cached prefix
            tokens = (5 + number % 500, 5 + number // 500 % 500, *(5,) * 30)
            work, times = PartialRollout.begin(Prompt(f"{number}", tokens, {}), 1), list[float]()
            self.works.append(work)
            self._all.append(times)
            if first:
                self._first.append(times)
            while not work.is_complete:
                try:
                    await client.ask(self._member, work, lambda times=times: times.append(time.monotonic()))
                except Interrupted:
                    continue

    def gaps(self, begin: float, end: float) -> dict[str, float]:
        """Most seconds without a token, of times that overlap these: of the `first` answers, one after the other; of
        `any` one answer, from its first token to its last; without one of `all` answers. The last two show when tokens
        are sent, `interval` at a time."""

        def longest(times: list[float]) -> float:
            return max((b - a for a, b in pairwise(times) if a <= end and b >= begin), default=0.0)

        return {
            "first": max(longest(times) for times in self._first[:]),
            "any": max(longest(times) for times in self._all[:]),
            "all": longest(sorted(chain(*self._all[:]))),
        }

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._http.run(asyncio.sleep(0.5))
