"""Sleep of an engine that takes turns with the trainer on one GPU: its memory is dropped while the trainer computes."""

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Any

from .gate import GENERATES, Gate

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

DROP_ALL = 2
"""vLLM's level of sleep that keeps neither weights nor cache: new weights come before the next request."""


class State(Enum):
    AWAKE, LOADING, ASLEEP = range(3)
    """All memory is there; that of the weights alone, for new ones to be loaded; none of it."""


class Sleep:
    """Sends an engine to sleep and wakes it up, in two parts: room for its weights, and after these its cache.

    From the first call on `gate` is closed, until a commit opens it: nothing is generated without weights, and requests
    wait. On a CPU vLLM frees nothing, but the order of things is the same.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate, self.state = gate, State.AWAKE
        self._lock = asyncio.Lock()

    async def begin(self, engine: "AsyncLLM") -> list[dict[str, Any]]:
        """Ends what is under way, has the workers check the weights that served, and drops these and the cache; returns
        the workers' `rlhf_release`. Nothing of all that for an engine that is not awake."""
        async with self._lock:
            if self.state is not State.AWAKE:
                return []
            self._gate.close()
            try:
                await engine.engine_core.pause_scheduler_async(mode="abort", clear_cache=True)
            finally:
                self._gate.release()
            await self._gate.empty(GENERATES, lambda: engine.engine_core.pause_scheduler_async(mode="abort"))
            released: list[dict[str, Any]] = await engine.collective_rpc("rlhf_release")
            await engine.sleep(DROP_ALL)
            self.state = State.ASLEEP
            return released

    async def make_room(self, engine: "AsyncLLM") -> None:
        """Gives the engine memory for its weights, which are garbage until a commit."""
        if self.state is State.ASLEEP:
            await engine.wake_up(["weights"])
            self.state = State.LOADING

    async def end(self, engine: "AsyncLLM") -> None:
        """Gives an engine that has its weights its cache."""
        if self.state is State.LOADING:
            await engine.wake_up(["kv_cache"])
            self.state = State.AWAKE
