"""Events are counted: what goes on for hours is written less and less often."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_operator.cluster.act import recorder as module
from rlhf_operator.cluster.act.recorder import Recorder
from rlhf_operator.cluster.decide.describe import Event
from rlhf_operator.kube.api import Api
from rlhf_operator.kube.clock import ServerClock

JOB = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "job", "namespace": "ns", "uid": "1", "resourceVersion": "1"},
}


class Server(Api):
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.clock = ServerClock(lambda: 1_000_000.0)

    async def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        self.events.append(body)
        return body


def record_events(monkeypatch: pytest.MonkeyPatch, *events: Event, every: float) -> list[dict[str, Any]]:
    """Records the events, one after the other; returns the objects that were written."""
    server = Server()
    recorder = Recorder(server)

    async def whole() -> None:
        for number, event in enumerate(events):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda at=number * every: at))
            await recorder.record(JOB, event)

    asyncio.run(whole())
    return server.events


def test_an_hour_of_the_same_is_a_dozen_writes_of_one_event(monkeypatch):
    written = record_events(monkeypatch, *[Event("Warning", "PodsWaiting", "no node")] * 720, every=5.0)
    assert len(written) <= 12
    assert len({body["metadata"]["name"] for body in written}) == 1
    assert [body["count"] for body in written][:4] == [1, 3, 7, 15]
    # By the API server's clock.
    assert {body["lastTimestamp"] for body in written} == {"1970-01-12T13:46:40Z"}


def test_figures_that_change_make_no_other_event_where_it_says_so(monkeypatch):
    def waiting(nodes: int) -> Event:
        return Event("Warning", "PodsWaiting", f"0/{nodes} nodes are available", "/ nodes are available")

    written = record_events(monkeypatch, *map(waiting, range(100)), every=5.0)
    assert len({body["metadata"]["name"] for body in written}) == 1
    assert written[-1]["message"] != written[0]["message"]
    assert (
        len(record_events(monkeypatch, Event("Warning", "A", "0"), Event("Warning", "A", "1"), every=5.0))
        == 2
    )
