"""The order in which a server goes over to new weights; test_serving.py has a real one do it."""

import asyncio
from types import SimpleNamespace

import pytest

from rlhf_trainer.engines.vllm.asgi import call, reply
from rlhf_trainer.engines.vllm.commit import Commit

NEW = {"version": 3, "digest": "d"}


class TrainedModel:
    """vLLM's: no step begins once it is told to pause, but it says so, and clears its caches, only after a while."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.paused = False
        self.fails = ""
        self.worker = {**NEW, "rank": 0}
        self.renderer = self.engine_core = self
        self._swapped = asyncio.Event()

    async def _do(self, what: str) -> None:
        await asyncio.sleep(0)  # the engine is another process
        if what == self.fails:
            self._swapped.set()
            raise RuntimeError(f"no {what}")
        self.said.append(what)

    async def clear_mm_cache_async(self) -> None:
        await self._do("clear")

    async def pause_scheduler_async(self, mode: str, clear_cache: bool) -> None:
        assert mode == "keep"
        assert clear_cache
        await self._do("pause")
        self.paused = True
        await self._swapped.wait()
        await self._do("cleared")

    async def is_paused(self) -> bool:
        await asyncio.sleep(0)
        return self.paused

    async def finish_weight_update(self) -> None:
        assert self.paused
        await self._do("swap")
        self._swapped.set()

    async def collective_rpc(self, method: str) -> list[dict[str, object]]:
        await self._do(method)
        return [self.worker]

    async def resume_generation(self) -> None:
        await self._do("resume")
        self.paused = False


def commit(engine: TrainedModel) -> dict:
    scope = {
        "type": "http",
        "headers": [],
        "app": SimpleNamespace(state=SimpleNamespace(engine_client=engine)),
    }
    return asyncio.run(asyncio.wait_for(call(Commit(other), scope, "POST", "/commit", NEW), 10))


async def other(_scope, _receive, send) -> None:
    await reply(send, 200, {"the server": "itself"})


def test_it_swaps_as_soon_as_no_step_begins_and_resumes_when_all_is_said_and_cleared():
    engine = TrainedModel()
    assert commit(engine)["pause_seconds"] > 0
    assert not engine.paused
    order = engine.said
    assert order.index("pause") < order.index("swap") < order.index("rlhf_status") < order.index("resume")
    assert order.index("swap") < order.index("cleared") < order.index("resume")


@pytest.mark.parametrize("what", ["swap", "rlhf_status", "cleared"])
def test_a_server_that_may_hold_neither_stays_paused(what):
    engine = TrainedModel()
    engine.fails = what
    with pytest.raises(ValueError, match=rf"HTTP 500 to /commit: .*no {what}"):
        commit(engine)
    assert engine.paused
    assert "resume" not in engine.said


def test_who_cannot_pause_does_not_swap():
    engine = TrainedModel()
    engine.fails = "pause"
    with pytest.raises(ValueError, match="no pause"):
        commit(engine)
    assert "swap" not in engine.said


def test_other_weights_than_were_sent_are_not_served():
    engine = TrainedModel()
    engine.worker["digest"] = "another"
    with pytest.raises(ValueError, match=r"the workers have .*another.*, sent was .*'d'"):
        commit(engine)
    assert engine.paused


def test_other_paths_are_the_server_s_own():
    scope = {"type": "http", "headers": []}
    assert asyncio.run(call(Commit(other), scope, "GET", "/is_paused")) == {"the server": "itself"}
