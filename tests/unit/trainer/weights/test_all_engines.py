"""A server of several engines (`data-parallel-size`), by vLLM's own client: its engines alone are not there."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import DPLBAsyncMPClient

from rlhf_trainer.engines.vllm.front.asgi import call
from rlhf_trainer.engines.vllm.front.middleware import Front
from rlhf_trainer.engines.vllm.serve import watchdog

NEW = {"version": 3, "digest": "d"}


class Core(DPLBAsyncMPClient):
    """Two engines of two workers each; what the second engine's hold is said by `behind`."""

    def __init__(self, behind: dict[str, Any]) -> None:
        self.core_engines = [b"0", b"1"]
        self.said: list[tuple[bytes, str]] = []
        self._held = {b"0": NEW, b"1": NEW | behind}

    def shutdown(self, timeout: float | None = None) -> None:
        """There are no processes."""

    async def _call_utility_async(self, method: str, *args: Any, engine: bytes) -> Any:
        what = args[0] if method == "collective_rpc" else method
        self.said.append((engine, what))
        if what == "is_scheduler_paused":
            return True
        proven = what == "rlhf_prove"
        return [proven or {**self._held[engine], "rank": rank} for rank in range(2)]


def server(monkeypatch, behind: dict[str, Any]) -> tuple[Front, dict[str, Any], AsyncLLM]:
    """The front of a server that has started, what a request to it needs, and its engines' client."""
    monkeypatch.setattr(watchdog, "start", lambda _engine: None)
    monkeypatch.setenv("RLHF_TOKEN", "t")

    async def nothing() -> None:
        pass

    engine = object.__new__(AsyncLLM)
    engine.engine_core = Core(behind)
    engine.renderer = SimpleNamespace(clear_mm_cache_async=nothing, shutdown=lambda: None)
    app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
    front = Front(other)
    asyncio.run(front({"type": "lifespan", "app": app}, other, other))
    return front, {"type": "http", "app": app, "headers": []}, engine


async def other(*_: Any) -> None:
    """The rest of the server."""


def commit(front: Front, scope: dict[str, Any], *, keep: bool = False) -> dict[str, Any]:
    body = {**NEW, "keep": keep}
    return asyncio.run(asyncio.wait_for(call(front.app, scope, "POST", "/commit", body), 10))


@pytest.mark.parametrize("behind", [{"version": 2, "digest": "c"}, {"digest": "another"}])
def test_a_commit_that_one_of_two_engines_did_not_take_has_failed(monkeypatch, behind):
    front, scope, engine = server(monkeypatch, behind)
    with pytest.raises(ValueError, match=r"the workers have .*; the trainer sent"):
        commit(front, scope)
    assert (b"1", "resume_scheduler") not in engine.engine_core.said, "none of them goes on"


@pytest.mark.parametrize("keep", [False, True])
def test_a_commit_that_all_engines_took_is_one(monkeypatch, keep):
    """Each goes on once all have the weights, and names their version with the tokens of its own steps from then on."""
    front, scope, engine = server(monkeypatch, {})
    assert commit(front, scope, keep=keep)["pause_seconds"] > 0
    calls = engine.engine_core.said
    order = (
        "pause_scheduler",
        "finish_weight_update",
        "rlhf_status",
        "set_weight_version",
        "resume_scheduler",
    )
    for what in order:
        assert [each for each, name in calls if name == what] == [b"0", b"1"]
    for before, after in pairwise(order):
        assert max(calls.index((each, before)) for each in (b"0", b"1")) < calls.index((b"0", after))


def test_all_workers_say_what_they_hold(monkeypatch):
    """The trainer waits for these reports during a broadcast, and checks them at every step."""
    *_, engine = server(monkeypatch, {"version": 2})
    reports = asyncio.run(engine.collective_rpc("rlhf_status"))
    assert [worker["version"] for worker in reports] == [3, 3, 2, 2]
