"""Pods that have a node and no container: their job says what their kubelet lacks, as only the pods' events tell."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

from rlhf_operator.cluster.observe import pod_events
from rlhf_operator.kube.pages import Body, Keep

pytestmark = pytest.mark.usefixtures("crd")
SAID = 'MountVolume.SetUp failed for volume "keys" : secret "wandb-key" not found'


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_events, "_PATIENCE_SECONDS", -60.0)
    monkeypatch.setattr(pod_events, "_PAUSE_SECONDS", 0.0)


async def tell(operator: SteppedOperator, pod: str, kind: str, reason: str, message: str, at: str) -> None:
    """An event of a kubelet."""
    uid = (await operator.api.get("Pod", operator.namespace, pod))["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": operator.namespace, "name": pod, "uid": uid}
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.{uuid.uuid4().hex}", "namespace": operator.namespace},
        "involvedObject": about,
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": "kubelet", "host": "of-paper"},
        "firstTimestamp": at,
        "lastTimestamp": at,
    }
    await operator.api.create(body)


async def status(operator: SteppedOperator) -> dict[str, Any]:
    return (await operator.api.get("RLHFJob", operator.namespace, "ppo"))["status"]


async def stalled(operator: SteppedOperator) -> dict[str, Any]:
    return next(c for c in (await status(operator))["conditions"] if c["type"] == "Stalled")


async def reads(operator: SteppedOperator) -> int:
    """Looks once; the number of listings of events that this took."""
    calls: list[tuple[str, str]] = []
    operator.api._observe = lambda verb, kind, *_: calls.append((verb, kind))
    await operator.reconcile("ppo")
    return calls.count(("list", "Event"))


def test_a_secret_that_a_volume_names_and_that_is_missing_is_told(
    operators: Operators, namespace: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        assert await reads(operator) == 0, "none has a node"
        await operator.bind("ppo-generator-0")
        await tell(
            operator, "ppo-generator-0", "Normal", "Scheduled", "it has a node", "2026-01-01T00:00:00Z"
        )
        assert await reads(operator) == 1
        assert (await stalled(operator))["reason"] != "FailedMount"
        await tell(operator, "ppo-generator-0", "Warning", "FailedMount", SAID, "2026-01-01T00:00:01Z")
        assert await reads(operator) == 1
        condition = await stalled(operator)
        assert (condition["status"], condition["reason"]) == ("True", "FailedMount")
        assert condition["message"] == f"ppo-generator-0: FailedMount: {SAID} (namespace {namespace})"
        assert 'secret "wandb-key" not found' in (await status(operator))["message"]
        events = [event async for event in operator.api.list("Event", namespace)]
        (event,) = (each for each in events if each["reason"] == "PodsWaiting")
        assert 'secret "wandb-key" not found' in event["message"]
        await tell(operator, "ppo-generator-0", "Normal", "Pulling", "pulls", "2026-01-01T00:00:02Z")
        await operator.reconcile("ppo")
        assert (await stalled(operator))["reason"] != "FailedMount"

    operators(body)


def test_each_pod_that_waits_is_asked_for_in_turn_and_none_that_runs(
    operators: Operators, namespace: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        for pod in ("ppo-trainer-0", "ppo-generator-0", "ppo-reward-0"):
            await operator.bind(pod)
        await tell(operator, "ppo-reward-0", "Warning", "FailedMount", SAID, "2026-01-01T00:00:00Z")
        assert [await reads(operator) for _ in range(3)] == [1, 1, 1]
        assert "ppo-reward-0: FailedMount" in (await stalled(operator))["message"]
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        for pod in ("ppo-trainer-0", "ppo-generator-0", "ppo-reward-0"):
            container = {"name": "role", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
            patch = {"status": {"containerStatuses": [{**container, "state": running}]}}
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}/status"
            await operator.api._merge("patch", "Pod", path, patch)
        assert await reads(operator) == 0
        assert (await stalled(operator))["reason"] != "FailedMount"

    operators(body)


def test_of_a_flood_of_events_a_bounded_part_is_read(
    operators: Operators, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    async def body(operator: SteppedOperator) -> None:
        listing = operator.api.list

        async def flooded(kind: str, *place: str, keep: Keep = dict, **more: Any) -> AsyncIterator[Body]:
            if kind != "Event":
                async for each in listing(kind, *place, keep=keep, **more):
                    yield each
                return
            for number in range(10_000):
                read.append(number)
                at = f"2026-01-01T{600 - abs(number - 3):06d}Z"  # the fourth is the newest
                event = {"type": "Warning", "reason": f"Reason{number}", "message": "m" * 100_000}
                yield keep({**event, "lastTimestamp": at, "eventTime": None, "series": None})

        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        await operator.bind("ppo-generator-0")
        monkeypatch.setattr(operator.api, "list", flooded)
        await operator.reconcile("ppo")
        assert (await stalled(operator))["reason"] == "Reason3"

    operators(body)
    assert len(read) == 500


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], None),
        ([("Warning", "FailedScheduling", "T1"), ("Normal", "Scheduled", "T1")], None),
        ([("Normal", "Scheduled", "T1"), ("Warning", "FailedMount", "T2")], "FailedMount: m"),
        ([("Warning", "FailedMount", "T2"), ("Normal", "Pulling", "T3")], None),
    ],
)
def test_the_newest_event_counts(events: list[tuple[str, str, str]], expected: str | None) -> None:
    newer = {"T1": "2026-01-01T00:00:01", "T2": "2026-01-01T00:00:02", "T3": "2026-01-01T00:00:03"}
    made: list[dict[str, Any]] = [
        {"type": kind, "reason": reason, "message": "m", "lastTimestamp": f"{newer[at]}Z"}
        for kind, reason, at in events
    ]
    assert pod_events.blocking_event(made) == expected
    for event in made:  # as the newer API of events writes them
        event["eventTime"] = event.pop("lastTimestamp").replace("Z", ".123456Z")
    assert pod_events.blocking_event(made) == expected
