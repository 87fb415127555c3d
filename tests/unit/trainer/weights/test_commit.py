"""The order in which a server goes over to new weights; test_serving.py has a real one do it."""

import asyncio
from types import SimpleNamespace

import pytest

from rlhf_trainer.engines.vllm.front import gate
from rlhf_trainer.engines.vllm.front.asgi import call, reply
from rlhf_trainer.engines.vllm.front.commit import Commit
from rlhf_trainer.engines.vllm.front.gate import LABELLED
from rlhf_trainer.transport.frames import GENERATE

NEW = {"version": 3, "digest": "d"}
KEPT = {**NEW, "keep": True}


class Engine:
    """vLLM's: once told to pause, it begins no step; those under way end, and caches are cleared, after a while."""

    def __init__(self) -> None:
        self.aborted = 0
        self.said: list[str] = []
        self.paused = False
        self.fails = ""
        self.worker = {**NEW, "rank": 0}
        self.mode = ""
        self.slices = 0
        self.renderer = self.engine_core = self.output_processor = self
        self.external_req_ids = {"rlhf-1": ["rlhf-1-a"], "cmpl-1": ["cmpl-1-a"]}

    async def _do(self, what: str) -> None:
        await asyncio.sleep(0)  # the engine is another process
        if what == self.fails:
            raise RuntimeError(f"no {what}")
        self.said.append(what)

    async def clear_mm_cache_async(self) -> None:
        await self._do("clear")

    async def pause_scheduler_async(self, mode: str, clear_cache: bool) -> None:
        assert clear_cache == (mode == "abort")
        self.mode = mode
        self.aborted += mode == "abort"
        if self.paused:  # again, for requests that came late to it
            return
        await self._do("pause")
        self.paused = True
        await self._do("ended")
        await self._do("cleared")

    async def abort(self, requests: list[str]) -> None:
        assert self.paused
        assert requests == ["cmpl-1"], "the others go on"
        self.aborted += 1

    async def finish_weight_update(self) -> None:
        assert self.paused
        await self._do("swap")

    async def collective_rpc(self, method: str) -> list[object]:
        await self._do(method)
        if method == "rlhf_prove":
            self.slices -= 1
            return [self.slices <= 0, True]
        return [self.worker]

    async def update_weight_version(self, version: str) -> None:
        await self._do(f"version {version}")

    async def resume_generation(self) -> None:
        await self._do("resume")
        self.paused = False


def commit(engine: Engine, body: dict = NEW) -> dict:
    scope = {
        "type": "http",
        "headers": [],
        "app": SimpleNamespace(state=SimpleNamespace(engine_client=engine)),
    }
    return asyncio.run(asyncio.wait_for(call(Commit(other), scope, "POST", "/commit", body), 10))


async def other(_scope, _receive, send) -> None:
    await reply(send, 200, {"the server": "itself"})


@pytest.mark.parametrize("body", [NEW, KEPT])
def test_it_swaps_when_the_steps_under_way_have_ended_and_then_resumes(body):
    """Their tokens do not wait for the swap, and are all in before those to come are of the new version."""
    engine = Engine()
    assert commit(engine, body)["pause_seconds"] > 0
    assert not engine.paused
    assert engine.mode == ("keep" if body is KEPT else "abort")
    order = engine.said
    steps = ["clear", "pause", "ended", "cleared", "swap", "rlhf_status", "version 3", "resume"]
    assert order[: len(steps)] == steps


@pytest.mark.parametrize("what", ["cleared", "swap", "rlhf_status"])
def test_a_server_that_may_hold_neither_stays_paused(what):
    engine = Engine()
    engine.fails = what
    with pytest.raises(ValueError, match=rf"HTTP 500 to /commit: .*no {what}"):
        commit(engine)
    assert engine.paused
    assert "resume" not in engine.said


def test_who_cannot_pause_does_not_swap():
    engine = Engine()
    engine.fails = "pause"
    with pytest.raises(ValueError, match="no pause"):
        commit(engine)
    assert "swap" not in engine.said


def test_other_weights_than_were_sent_are_not_served():
    engine = Engine()
    engine.worker["digest"] = "another"
    with pytest.raises(ValueError, match=r"the workers have .*another.*; the trainer sent .*'d'"):
        commit(engine)
    assert engine.paused


def test_a_recheck_waits_until_the_proof_is_complete_and_leaves_the_steps_between_its_slices():
    async def run() -> None:
        engine = Engine()
        engine.slices = 3
        front = Commit(other)
        await call(front, scope_of(engine, "/"), "POST", "/commit", NEW)
        answer = await asyncio.wait_for(call(front, scope_of(engine, "/"), "POST", "/recheck"), 10)
        assert answer == {"results": [engine.worker]}
        proved = engine.said[engine.said.index("resume") + 1 :]
        assert proved == ["rlhf_prove", "rlhf_prove", "rlhf_prove", "rlhf_recheck"]
        engine.fails = "rlhf_recheck"
        with pytest.raises(ValueError, match=r"HTTP 500 to /recheck: .*no rlhf_recheck"):
            await call(front, scope_of(engine, "/"), "POST", "/recheck")

    asyncio.run(run())


def test_other_paths_are_the_server_s_own():
    scope = {"type": "http", "headers": []}
    assert asyncio.run(call(Commit(other), scope, "GET", "/is_paused")) == {"the server": "itself"}


class Streams:
    """A server whose responses end when they are told to; a request reaches the engine only after `late` aborts."""

    def __init__(self, engine: Engine, late: int = 0) -> None:
        self.engine, self.late, self.deaf = engine, late, False
        self.begun = asyncio.Event()

    async def __call__(self, _scope, _receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.begun.set()
        while self.deaf or self.engine.aborted <= self.late:
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"{}"})


class Reply:
    def __init__(self) -> None:
        self.messages: list[dict] = []

    async def __call__(self, message) -> None:
        self.messages.append(message)

    @property
    def version(self) -> bytes | None:
        return dict(self.messages[0]["headers"]).get(b"x-weight-version")


def scope_of(engine: Engine, path: str) -> dict:
    app = SimpleNamespace(state=SimpleNamespace(engine_client=engine))
    return {"type": "http", "path": path, "headers": [], "app": app}


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize(("new", "path"), [(NEW, GENERATE), (NEW, LABELLED[0]), (KEPT, LABELLED[0])])
def test_no_response_is_under_way_when_new_weights_serve(new, path, late):
    """Also none that reached the engine after the pause; later requests are served with the new weights. Replies of
    vLLM's own paths, which name one version, end in either mode."""

    async def run() -> None:
        engine = Engine()
        streams = Streams(engine, late)
        front = Commit(streams)
        before, after = Reply(), Reply()
        request = asyncio.create_task(front(scope_of(engine, path), None, before))
        await streams.begun.wait()
        committing = asyncio.create_task(call(front, scope_of(engine, "/"), "POST", "/commit", new))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(front(scope_of(engine, path), None, after))
        assert (await asyncio.wait_for(committing, 10))["pause_seconds"] > 0
        assert request.done()
        assert engine.aborted > late
        await asyncio.wait_for(waiting, 10)
        assert (before.version, after.version) == (None, None if path == GENERATE else b"3")

    asyncio.run(run())


def test_responses_under_way_go_on_after_a_swap_that_keeps_them():
    async def run() -> None:
        engine = Engine()
        streams = Streams(engine)
        front, got = Commit(streams), Reply()
        request = asyncio.create_task(front(scope_of(engine, GENERATE), None, got))
        await streams.begun.wait()
        await asyncio.wait_for(call(front, scope_of(engine, "/"), "POST", "/commit", KEPT), 10)
        assert not request.done()
        assert not engine.paused
        engine.aborted = 1  # the response is complete
        await asyncio.wait_for(request, 10)
        assert len(got.messages) == 2

    asyncio.run(run())


@pytest.mark.parametrize("fails", ["", "pause"])
def test_the_swap_is_asked_for_before_streams_send_their_last_tokens(fails):
    """Many streams send at once, which would hold up the swap; where there is no swap, they send them too."""

    async def run() -> None:
        engine = Engine()
        engine.fails = fails
        streams = Streams(engine)
        front = Commit(streams)

        async def send(message: dict) -> None:
            if message["type"] == "http.response.body":
                engine.said.append("last tokens")

        request = asyncio.create_task(front(scope_of(engine, GENERATE), None, send))
        await streams.begun.wait()
        committing = asyncio.create_task(call(front, scope_of(engine, "/"), "POST", "/commit", NEW))
        await asyncio.wait_for(request, 10)
        await asyncio.gather(committing, return_exceptions=True)
        before = engine.said[: engine.said.index("last tokens")]
        assert before == (["clear"] if fails else ["clear", "pause", "ended", "cleared", "swap"])

    asyncio.run(run())


def test_a_stream_that_outlasts_the_swap_is_cut_off(monkeypatch):
    monkeypatch.setattr(gate, "LINGER_SECONDS", 0.05)

    async def run() -> None:
        engine = Engine()
        streams = Streams(engine)
        streams.deaf = True
        front, got = Commit(streams), Reply()
        request = asyncio.create_task(front(scope_of(engine, LABELLED[0]), None, got))
        await streams.begun.wait()
        await asyncio.wait_for(call(front, scope_of(engine, "/"), "POST", "/commit", NEW), 10)
        streams.deaf = False
        with pytest.raises(RuntimeError, match="the weights of version None were replaced during a response"):
            await request
        assert len(got.messages) == 1, "nothing after the swap"

    asyncio.run(run())
