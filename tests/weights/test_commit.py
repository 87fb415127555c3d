"""The order in which a server goes over to new weights; test_serving.py has a real one do it."""

import asyncio

import pytest

from rlhf_trainer.weights.commit import Commit
from rlhf_trainer.weights.inside import call, reply

SCOPE = {"type": "http", "headers": []}
NEW = {"version": 3, "digest": "d"}


class Vllm:
    """Paused at once, though it says so only after a while."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.paused = False
        self.fails = ""
        self.worker = {**NEW, "rank": 0}
        self.swapped = asyncio.Event()

    async def __call__(self, scope, receive, send) -> None:
        await receive()
        await asyncio.sleep(0)  # the engine is another process
        path = scope["path"]
        assert scope["query_string"] == (b"mode=keep" if path == "/pause" else b"")
        if path == self.fails:
            self.swapped.set()
            await reply(send, 500, {"error": "no"})
            return
        if path == "/pause":
            self.paused = True
            await self.swapped.wait()
        if path == "/finish_weight_update":
            assert self.paused
            self.swapped.set()
        if path == "/resume":
            self.paused = False
        self.said.append(path)
        answers = {"/is_paused": {"is_paused": self.paused}, "/collective_rpc": {"results": [self.worker]}}
        await reply(send, 200, answers.get(path, {}))


def commit(server: Vllm) -> dict:
    return asyncio.run(asyncio.wait_for(call(Commit(server), SCOPE, "POST", "/commit", NEW), 10))


def test_it_swaps_as_soon_as_no_step_begins_and_resumes_when_all_is_said():
    server = Vllm()
    assert commit(server)["pause_seconds"] > 0
    assert not server.paused
    order = [path for path in server.said if path != "/is_paused"]
    assert order.index("/finish_weight_update") < order.index("/pause") < order.index("/resume")


@pytest.mark.parametrize("path", ["/finish_weight_update", "/collective_rpc"])
def test_a_server_that_may_hold_neither_stays_paused(path):
    server = Vllm()
    server.fails = path
    with pytest.raises(ValueError, match=rf"HTTP 500 to /commit: .*HTTP 500 to {path}"):
        commit(server)
    assert "/resume" not in server.said


def test_who_cannot_pause_does_not_swap():
    server = Vllm()
    server.fails = "/pause"
    with pytest.raises(ValueError, match="HTTP 500 to /pause"):
        commit(server)
    assert "/finish_weight_update" not in server.said


def test_other_weights_than_were_sent_are_not_served():
    server = Vllm()
    server.worker["digest"] = "another"
    with pytest.raises(ValueError, match=r"the workers have .*another.*, sent was .*'d'"):
        commit(server)
    assert server.paused


def test_other_paths_are_the_server_s_own():
    server = Vllm()
    assert asyncio.run(call(Commit(server), SCOPE, "GET", "/is_paused")) == {"is_paused": False}
