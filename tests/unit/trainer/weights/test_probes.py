"""The middleware in front of an application that answers as vLLM does; test_serving.py asks a real server."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.clocks.virtual_time import Loop, run

from rlhf_api.roles import Role
from rlhf_trainer.engines.vllm.front import probes
from rlhf_trainer.engines.vllm.front.probes import Probes
from rlhf_trainer.transport.frames import GENERATE

NOTHING = {"version": None, "digest": None, "announced_version": None, "open": False, "failure": None}


class Server:
    """Stands in for vLLM behind the middleware, whose calls it answers; `hung` workers answer nothing."""

    def __init__(self) -> None:
        self.worker: dict[str, Any] = dict(NOTHING)
        self.asked: list[tuple[str, Any]] = []
        self.running = asyncio.Event()
        self.running.set()
        self.finish_reason = "length"
        self.errored = False
        """vLLM's word for a dead engine."""
        self.state = SimpleNamespace(engine_client=self)
        self.probes = Probes(self)

    async def __call__(self, scope, receive, send) -> None:
        body = json.loads((await receive())["body"] or b"null")
        self.asked.append((scope["path"], body))
        if self.errored:
            raise RuntimeError("the engine is dead")
        await self.running.wait()
        choices = [{"token_ids": [1], "finish_reason": self.finish_reason}]
        answer = {"/collective_rpc": {"results": [self.worker]}, "/v1/completions": {"choices": choices}}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answer.get(scope["path"], {})).encode()})

    async def get(self, path: str, client: str = "10.0.0.1") -> tuple[int, dict[str, Any]]:
        return await self.request("GET", path, client)

    async def post(self, path: str) -> None:
        assert (await self.request("POST", path))[0] == 200

    async def request(self, method: str, path: str, client: str = "10.0.0.1") -> tuple[int, dict[str, Any]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "headers": [], "app": self}
        scope["client"] = (client, 1)
        await self.probes(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"])

    async def give(self, version: int) -> None:
        """Sends all calls of one update, as the trainer does."""
        for path in ("/start_weight_update", "/update_weights"):
            await self.post(path)
        self.worker |= {"version": version, "digest": f"of {version}", "announced_version": version}
        await self.post("/commit")

    async def seconds_until(self, path: str, status: int) -> float:
        """Polls a probe until it answers with `status`; returns the seconds that took."""
        began = asyncio.get_running_loop().time()
        while (await self.get(path))[0] != status:
            await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - began

    def completions(self) -> int:
        return sum(path == "/v1/completions" for path, _ in self.asked)


def scenario(test: Callable[[Server], Awaitable[None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """A test on an event loop of its own, by whose clock the probes go too: their waits take no time."""

    async def body() -> None:
        await test(Server())

    def on_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
        loop = Loop()
        monkeypatch.setattr(probes, "time", SimpleNamespace(monotonic=loop.time))
        run(loop, body(), 3600)

    on_a_loop.__name__ = test.__name__
    return on_a_loop


def test_it_answers_where_the_role_says() -> None:
    row = Role.GENERATOR.row
    assert (row.ready, row.live, row.drain) == (probes.READY, probes.LIVE, probes.DRAIN)


@scenario
async def test_ready_needs_weights_of_the_trainer_and_one_token_made_with_them(server: Server) -> None:
    assert await server.get("/ready") == (503, {"ok": False, "reason": "holds no weights of the trainer"})
    assert server.completions() == 0
    await server.give(0)
    for _ in range(5):
        assert await server.get("/ready") == (200, {"ok": True})
    assert server.completions() == 1, "one for each version, however often it is asked"
    await server.give(1)
    assert (await server.get("/ready"))[0] == 200
    assert server.completions() == 2


@scenario
async def test_an_answer_that_was_cut_off_proves_nothing(server: Server) -> None:
    server.finish_reason = "abort"
    await server.give(0)
    status, answer = await server.get("/ready")
    assert (status, answer["reason"]) == (503, "has generated nothing with weight version 0")
    server.finish_reason = "stop"
    assert (await server.get("/ready"))[0] == 200


@scenario
async def test_older_weights_than_the_trainer_sent_are_not_ready(server: Server) -> None:
    await server.give(3)
    assert (await server.get("/ready"))[0] == 200
    server.worker["announced_version"] = 4  # a broadcast that broke
    status, answer = await server.get("/ready")
    assert (status, answer["reason"]) == (503, "holds weight version 3, the trainer sent 4")


@scenario
async def test_an_update_neither_unreadies_nor_is_disturbed(server: Server) -> None:
    server.running.clear()  # the workers receive: they answer nobody else
    update = asyncio.create_task(server.post("/update_weights"))
    await asyncio.sleep(0)
    assert (await server.get("/ready"))[1]["reason"] == "the first weights are on their way"
    server.running.set()
    await update
    await server.give(0)
    assert (await server.get("/ready"))[0] == 200

    server.running.clear()
    update = asyncio.create_task(server.post("/update_weights"))
    await asyncio.sleep(0)
    before = len(server.asked)
    for _ in range(3):
        assert (await server.get("/ready"))[0] == 200
        assert (await server.get("/live"))[0] == 200
    assert [path for path, _ in server.asked[before:]] == ["/collective_rpc"], "one question, from /live"
    server.running.set()
    await update
    server.worker |= {"announced_version": 1, "open": True}
    before = server.completions()
    assert (await server.get("/ready"))[0] == 200
    assert server.completions() == before, "it is not asked to prove what it is about to lose"


@scenario
async def test_an_update_that_never_ends_is_found(server: Server) -> None:
    await server.give(0)
    assert (await server.get("/ready"))[0] == 200
    server.running.clear()
    update = asyncio.create_task(server.post("/update_weights"))
    await asyncio.sleep(0)
    assert await server.seconds_until("/live", 503) > probes.CHANGE_SECONDS, "longer than a hung worker gets"
    assert (await server.get("/ready"))[0] == 503
    update.cancel()


@scenario
async def test_an_update_that_the_trainer_has_given_up_excuses_nobody(server: Server) -> None:
    """Otherwise a hung engine, which gets each step's update, would be excused for ever."""
    await server.give(0)
    server.running.clear()
    first = asyncio.create_task(server.post("/init_weight_transfer_engine"))
    await asyncio.sleep(0)
    assert (await server.get("/live"))[0] == 200
    again = asyncio.create_task(server.post("/init_weight_transfer_engine"))
    await asyncio.sleep(0)
    assert probes.HUNG_SECONDS / 2 < await server.seconds_until("/live", 503) < probes.CHANGE_SECONDS
    server.running.set()
    await asyncio.gather(first, again)
    assert (await server.get("/live"))[0] == 200
    server.running.clear()
    third = asyncio.create_task(server.post("/init_weight_transfer_engine"))
    await asyncio.sleep(0)
    assert await server.seconds_until("/live", 503) > probes.CHANGE_SECONDS
    third.cancel()


@scenario
async def test_a_hung_worker_is_unready_at_once_and_dead_after_a_while(server: Server) -> None:
    await server.give(0)
    assert (await server.get("/ready"))[0] == 200
    server.running.clear()
    before = len(server.asked)
    status, answer = await server.get("/ready")
    assert (status, answer["reason"]) == (503, "the workers do not answer")
    assert await server.seconds_until("/live", 503) > probes.HUNG_SECONDS / 2
    assert "the workers have not answered for" in (await server.get("/live"))[1]["reason"]
    assert len(server.asked) == before + 1, "never more than one question"
    server.running.set()
    assert (await server.get("/live"))[0] == 200
    assert (await server.get("/ready"))[0] == 200


@scenario
async def test_a_dead_engine_is_found_at_once_also_while_weights_are_changed(server: Server) -> None:
    await server.give(0)
    server.running.clear()  # no answer will ever come to this
    update = asyncio.create_task(server.post("/commit"))
    await asyncio.sleep(0)
    server.errored = True
    for path in ("/live", "/ready"):
        assert await server.get(path) == (503, {"ok": False, "reason": "vLLM's engine is dead"})
    update.cancel()


@scenario
async def test_workers_that_disagree_hold_no_weights(server: Server) -> None:
    await server.give(0)
    workers = [server.worker, server.worker | {"digest": "another"}]
    assert probes._served_proof(workers) is None
    assert probes._served_proof([server.worker] * 2) == (0, "of 0")


@scenario
async def test_drain_waits_for_prompts_under_way_and_for_a_while_of_quiet(server: Server) -> None:
    server.running.clear()
    prompt = asyncio.create_task(server.post(GENERATE))
    await asyncio.sleep(0)
    drained = asyncio.create_task(server.get("/drain"))
    await asyncio.sleep(2 * probes.QUIET_SECONDS)
    assert not drained.done()
    server.running.set()
    await prompt
    ended = asyncio.get_running_loop().time()
    assert (await drained)[0] == 200
    assert asyncio.get_running_loop().time() - ended >= probes.QUIET_SECONDS


@scenario
async def test_who_asks_often_for_the_drain_keeps_nobody_else_from_it(server: Server) -> None:
    """Anybody may ask, as a kubelet has no token, and each request waits for as long as prompts are under way."""
    server.running.clear()
    prompt = asyncio.create_task(server.post(GENERATE))
    waiting = [asyncio.create_task(server.get("/drain", "10.0.0.66")) for _ in range(1000)]
    await asyncio.sleep(0)
    refused = [task for task in waiting if task.done()]
    assert len(waiting) - len(refused) == probes.DRAINS
    assert {(await task)[0] for task in refused} == {503}
    kubelet = asyncio.create_task(server.get("/drain", "10.0.0.1"))
    await asyncio.sleep(60)
    assert not kubelet.done()
    server.running.set()
    await prompt
    assert (await kubelet)[0] == 200
    await asyncio.gather(*waiting)
    assert (await server.get("/drain", "10.0.0.66"))[0] == 200
    assert not server.probes._drains
