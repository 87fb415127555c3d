"""Changes that somebody makes to a job's objects and no watch shows: found by the next listing, with one event."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.api_server.oldest.stepped_operator import SERVED, Operators, SteppedOperator, job, with_companion
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl

pytestmark = pytest.mark.usefixtures("crd")
EDITS = {
    "ConfigMap": {"data": {"start.json": "{}"}},
    "NetworkPolicy": {"spec": {"ingress": [{}]}},
    "PodGroup.scheduling.volcano.sh": {"spec": {"minMember": 99}},
    "PodGroup.scheduling.x-k8s.io": {"spec": {"minMember": 99}},
    "ResourceClaimTemplate": {"spec": {"spec": {"devices": {"requests": []}}}},
    "Service": {"spec": {"selector": {"rlhf.dev/job": "another"}}},
}


async def edit(operator: SteppedOperator, kubeconfig: Path, kind: str, patch: dict) -> None:
    (name,) = await operator.names(kind)
    where = (kind.lower(), name, "-n", operator.namespace, "--type=merge", f"--patch={json.dumps(patch)}")
    await asyncio.to_thread(kubectl, kubeconfig, "patch", *where)


async def content(operator: SteppedOperator, kind: str) -> dict:
    (name,) = await operator.names(kind)
    body = await operator.api.get(kind, operator.namespace, name)
    return {part: body[part] for part in ("data", "spec") if part in body}


async def resync_and_look(operator: SteppedOperator) -> list[str]:
    """Lists the objects, and reconciles the job if something of it differs; returns the kinds that were applied."""
    calls, operator.api._observe = [], lambda verb, kind, *_: calls.append((verb, kind))
    swept = await operator.sweep()
    if swept.touched:
        await operator.reconcile("ppo")
    return [kind for verb, kind in calls if verb == "apply"]


@pytest.mark.usefixtures("gangs")
@pytest.mark.parametrize("kind", SERVED)
def test_what_somebody_changes_is_put_back_and_told_once(
    operators: Operators, namespace: str, control_plane: Cluster, kind: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(with_companion(namespace, kind))
        await operator.reconcile("ppo")
        before = await content(operator, kind)
        assert await resync_and_look(operator) == []
        await edit(operator, control_plane.kubeconfig, kind, EDITS[kind])
        assert await content(operator, kind) != before
        assert kind.partition(".")[0] in await resync_and_look(operator)
        assert await content(operator, kind) == before
        assert await resync_and_look(operator) == []
        # Of others' annotations nothing is told.
        note = {"metadata": {"annotations": {"example.com/note": "mine"}}}
        await edit(operator, control_plane.kubeconfig, kind, note)
        for _ in range(2):
            await resync_and_look(operator)
        events = [event async for event in operator.api.list("Event", namespace)]
        (event,) = (each for each in events if each["reason"] == "Restored")
        assert event["count"] == 1
        assert event["message"].startswith(f"{kind} ppo")

    operators(body)


def test_a_label_that_somebody_takes_is_put_back_once(
    operators: Operators, namespace: str, control_plane: Cluster
) -> None:
    """The listing does not show what has lost it."""

    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        label = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}
        await edit(operator, control_plane.kubeconfig, "NetworkPolicy", label)
        assert "NetworkPolicy" in await resync_and_look(operator)
        calls, operator.api._observe = [], lambda verb, *_: calls.append(verb)
        await operator.reconcile("ppo")
        assert "apply" not in calls

    operators(body)


def test_a_pod_that_lost_its_label_and_that_nothing_asks_for_is_deleted(
    operators: Operators, namespace: str, control_plane: Cluster
) -> None:
    """Like one that was scaled away. It would hold its GPUs for as long as the job is there."""

    async def body(operator: SteppedOperator, successor: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        change = ("-n", namespace, "pod/ppo-generator-0", "app.kubernetes.io/managed-by-")
        await asyncio.to_thread(kubectl, control_plane.kubeconfig, "label", *change)
        await operator.api.create(theirs(namespace))
        suspend = ("rlhfjob/ppo", "-n", namespace, "--type=merge", '--patch={"spec": {"suspend": true}}')
        await asyncio.to_thread(kubectl, control_plane.kubeconfig, "patch", *suspend)
        await successor.reconcile("ppo")
        assert await successor.names("Pod") == {"ppo-generator-0", "theirs"}
        assert (namespace, "ppo") in (await successor.sweep()).touched
        await successor.reconcile("ppo")
        assert await successor.names("Pod") == {"theirs"}
        events = [event async for event in successor.api.list("Event", namespace)]
        assert [event["reason"] for event in events].count("Relabelled") == 1

    operators(body)


def theirs(namespace: str) -> dict:
    """A pod that somebody made and labelled as the job's."""
    metadata = {"name": "theirs", "namespace": namespace, "labels": {"rlhf.dev/job": "ppo"}}
    spec = {"containers": [{"name": "shell", "image": "shell:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
