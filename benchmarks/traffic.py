"""Answers under way in a vLLM server while something else is measured."""

import asyncio
import time
from itertools import pairwise

from rlhf_trainer.comms.http import Background


class Load:
    """`count` answers in generation at a time, of which one is streamed; `gaps` lists the times between its tokens."""

    def __init__(self, http: Background, address: str, count: int, tokens: int) -> None:
        self.times: list[float] = []
        self._http, self._address, self._body = http, address, {"model": "policy", "temperature": 1.0}
        self._body |= {"prompt": [5] * 32, "max_tokens": tokens, "ignore_eos": True}
        self._tasks = [http.start(self._stream())] + [http.start(self._plain()) for _ in range(count - 1)]
        time.sleep(3.0 if count > 8 else 0.5)

    async def _plain(self) -> None:
        while True:
            await self._http.json("POST", f"{self._address}/v1/completions", self._body, timeout=600)

    async def _stream(self) -> None:
        while True:
            request = self._http.session.post(
                f"{self._address}/v1/completions", json=self._body | {"stream": True}
            )
            async with request as response:
                async for _ in response.content:
                    self.times.append(time.monotonic())

    def longest(self, since: float) -> float:
        times = [t for t in self.times if t >= since]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._http.run(asyncio.sleep(0.5))
