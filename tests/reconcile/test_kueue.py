"""Kueue's Workload, by its published types: what its state means, and what is said back."""

from typing import Any

import pytest
from tests.reconcile.world import World

from rlhf_api.manifest import from_cluster
from rlhf_operator.cluster.kueue import quota, released, report, workload
from rlhf_operator.cluster.names import QUEUE
from rlhf_operator.cluster.pinned import Pinned
from rlhf_operator.cluster.settings import Defaults
from rlhf_operator.cluster.snapshot import Job

STAMP = "2026-01-01T00:00:00Z"


def job(generators: int = 2, queue: str | None = "team") -> tuple[Job, Any]:
    body = World((f"spec.generator.replicas={generators}",)).job.body
    body = {**body, "metadata": {**body["metadata"], "labels": {QUEUE: queue} if queue else {}}}
    return Job.of(body), from_cluster(body).spec


def made(*conditions: str, reason: str = "Test", **status: Any) -> dict[str, Any]:
    """The Workload of two generators, in this state."""
    waiting, spec = job()
    body = workload(waiting, Pinned.make("job", spec, Defaults(image="i")))
    held = [{"type": c, "status": "True", "reason": reason, "message": "why"} for c in conditions]
    body["metadata"] |= {"resourceVersion": "7", "generation": 4}
    return {**body, "status": {"conditions": held, **status}}


ADMITTED = ("QuotaReserved", "Admitted")


@pytest.mark.parametrize(
    ("there", "generators", "queue", "state"),
    [
        (None, 2, None, "none"),
        (None, 2, "team", "absent"),
        (made(), 2, None, "left"),
        (made(), 2, "team", "waiting"),
        (made(), 3, "team", "outdated"),
        (made(), 1, "team", "outdated"),
        (made(), 2, "other", "outdated"),
        (made("QuotaReserved"), 2, "team", "waiting"),
        (made(*ADMITTED), 2, "team", "admitted"),
        (made(*ADMITTED), 1, "team", "admitted"),
        (made(*ADMITTED), 50, "team", "outgrown"),
        (made(*ADMITTED), 2, "other", "outgrown"),
        (made(*ADMITTED, reclaimablePods=[{"name": "generator", "count": 1}]), 2, "team", "outgrown"),
        (made(*ADMITTED, "Evicted"), 2, "team", "evicted"),
        (made("Evicted"), 2, "team", "waiting"),
    ],
)
def test_what_a_workload_means_for_its_job(there, generators, queue, state):
    assert quota(*job(generators, queue), there) == state


def test_a_deactivated_workload_is_left_so():
    off = made("Evicted")
    off["spec"]["active"] = False
    assert quota(*job(), off) == "deactivated"
    world = World()
    todo = world.step(quota="deactivated")
    assert (todo.queue, todo.create) == (None, ())
    assert "spec.active: false" in world.status.message


@pytest.mark.parametrize(
    ("reason", "requeued"), [("Preempted", "True"), ("PodsReadyTimeout", "False"), ("Deactivated", "False")]
)
def test_an_evicted_job_gives_its_quota_back_and_keeps_its_workload(reason, requeued):
    patch = released(made(*ADMITTED, "Evicted", reason=reason, requeueState={"count": 2}), STAMP)
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert "requeueState" not in patch["status"]
    assert (patch["status"]["admission"], patch["status"]["reclaimablePods"]) == (None, None)
    found = {c["type"]: c["status"] for c in patch["status"]["conditions"]}
    assert found == {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Requeued": requeued}


def test_readiness_and_what_can_be_reclaimed_are_said_once():
    there, (_, spec) = made(*ADMITTED), job(1)
    patch = report(there, spec, ready=False, stamp=STAMP)
    assert patch["status"]["reclaimablePods"] == [{"name": "generator", "count": 1}]
    assert patch["status"]["conditions"][-1] == {
        "type": "PodsReady",
        "status": "False",
        "reason": "WaitForStart",
        "message": "not all pods are ready",
        "lastTransitionTime": STAMP,
        "observedGeneration": 4,
    }
    there["status"] |= patch["status"]
    assert report(there, spec, ready=False, stamp=STAMP) is None
    assert report(there, spec, ready=True, stamp=STAMP) is not None


def test_a_job_taken_out_of_its_queue_runs_and_leaves_no_workload():
    todo = World().step(quota="left")
    assert todo.create
    assert todo.queue == "leave"
