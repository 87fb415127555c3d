"""Answers under way in a vLLM server while something else is measured."""

import asyncio
import time
from itertools import count, pairwise

from rlhf_api.run import Member
from rlhf_api.spec import Sampling
from rlhf_trainer.comms.http import HttpClient
from rlhf_trainer.comms.outcomes import Interrupted
from rlhf_trainer.generation.vllm import STREAM_INTERVAL, VllmClient
from rlhf_trainer.generation.work import Work
from rlhf_trainer.records import Prompt


class Load:
    """`answers` answers of `tokens` tokens in generation at a time, asked as the trainer does and continued where new
    weights interrupt them. The first one's tokens are sent as they come, those of the others `interval` at a time, so
    that the first shows when tokens are computed under a load of the usual kind. `times` lists when tokens of the first
    one came, `all_times` when those of any did."""

    def __init__(
        self, http: HttpClient, member: Member, answers: int, tokens: int, interval: int = STREAM_INTERVAL
    ) -> None:
        self.times: list[float] = []
        self.all_times: list[float] = []
        self._http, self._member, self._numbers = http, member, count()
        sampling = Sampling.model_validate({"maxNewTokens": tokens, "minNewTokens": tokens})
        self._tasks = []
        for i in range(answers):
            every = interval if i else 1
            client = VllmClient(http, sampling=sampling, seed=1, ends=(), stream_interval=every)
            self._tasks.append(http.start(self._answer(client, first=not i)))
        time.sleep(3.0 if answers > 8 else 0.5)

    async def _answer(self, client: VllmClient, *, first: bool) -> None:
        while True:
            work = Work.begin(Prompt(f"{next(self._numbers)}", (5,) * 32, {}), 1)
            while not work.whole:
                try:
                    await client.ask(self._member, work, lambda: self._came(first))
                except Interrupted:
                    continue

    def _came(self, first: bool) -> None:
        now = time.monotonic()
        self.all_times.append(now)
        if first:
            self.times.append(now)

    def longest(self, since: float, *, of_all: bool = False) -> float:
        """Most seconds between two tokens of the first answer, or `of_all` between any two frames."""
        times = [t for t in (self.all_times if of_all else self.times) if t >= since]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._http.run(asyncio.sleep(0.5))
