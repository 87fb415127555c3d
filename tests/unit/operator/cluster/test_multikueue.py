"""MultiKueue, by the types and the adapter for foreign kinds that Kueue publishes: its part is played by the tests."""

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.unit.api.manifests import document
from tests.unit.operator.cluster.test_reconciler import KEY, Story

from rlhf_operator.job.names import MULTIKUEUE, ORIGIN, QUEUE
from rlhf_operator.kube.api_error import ApiError

Body = dict[str, Any]


class Queued(Story):
    """With a Workload on the server, as its reconciler finds it in the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.events, self.deleted_jobs = dict[str, str](), list[str]()
        self.specs = list[tuple[str, ...]]()
        self.server.apply, self._apply = self._put, self.server.apply
        self.server.get, self._get = self._find, self.server.get
        self.server.delete, self._delete = self._take, self.server.delete
        self.server.merge_status = self._merge

    async def _put(self, body: Body) -> Body:
        stored = await self._apply(body)
        if body["kind"] == "Workload":
            self.cache.put(stored)
        if body["kind"] == "Event":
            self.events[body["reason"]] = body["message"]
        return stored

    async def _find(self, kind: str, namespace: str | None, name: str) -> Body:
        if kind != "Workload":
            return await self._get(kind, namespace, name)
        if self.workload is None:
            raise ApiError(404, "NotFound", f"{kind} {name} not found", kind=kind)
        return self.workload

    async def _take(self, kind: str, namespace: str, name: str, **more: Any) -> Body | None:
        self.deleted_jobs += [more["uid"]] if kind == "RLHFJob" else []
        return None if kind == "Workload" else await self._delete(kind, namespace, name, **more)

    async def _merge(self, kind: str, _namespace: str, _name: str, patch: Body) -> Body:
        assert (kind, self.workload is None) == ("Workload", False)
        changed = {**self.workload, "status": {**self.workload.get("status", {}), **patch["status"]}}
        return self.server.stored(changed)

    @property
    def workload(self) -> Body | None:
        return next(iter(self.cache.workloads(KEY)), None)

    def queue(self, uid: str, *overrides: str, **labels: str) -> None:
        self.specs += [overrides] if self.specs[-1:] != [overrides] else []
        body = document(*overrides) | {"status": self.server.status}
        body["metadata"] |= {"namespace": "ns", "uid": uid, "generation": len(self.specs)}
        body["metadata"]["labels"] = {QUEUE: "research", **labels}
        self.cache.put(self.server.stored(body))

    def admit(self, body: Body, *others: str) -> None:
        """As Kueue does; `others`: more conditions that hold."""
        kinds = ("QuotaReserved", "Admitted", *others)
        held = [{"type": kind, "status": "True", "reason": "Test"} for kind in kinds]
        self.cache.put(self.server.stored({**body, "status": {"conditions": held}}))

    def end(self, name: str) -> None:
        """The pod's container, with exit code 0."""
        over = {"exitCode": 0, "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:00Z"}
        container = {"name": "role", "state": {"terminated": over}}
        (pod,) = (pod for pod in self.cache.pods(KEY) if pod["metadata"]["name"] == name)
        status = {"phase": "Succeeded", "containerStatuses": [container]}
        self.cache.put(self.server.stored({**pod, "status": status}))

    def conditions(self) -> dict[str, str]:
        return {c["type"]: c["reason"] for c in (self.workload or {}).get("status", {}).get("conditions", ())}


def tell(story: Callable[[Queued], Awaitable[None]]) -> None:
    async def whole() -> None:
        made = Queued()
        try:
            await story(made)
        finally:
            await made.reconciler.close()

    asyncio.run(whole())


def test_the_cluster_that_dispatches_a_job_lines_it_up_and_makes_nothing_else():
    async def scenario(story: Queued) -> None:
        managed = f"spec.managedBy={MULTIKUEUE}"
        story.queue("first", managed)
        await story.reconcile()
        assert story.workload is not None
        assert story.workload["metadata"]["ownerReferences"][0]["uid"] == "first"
        story.admit(story.workload)
        # As the adapter copies it from the other cluster.
        story.server.status = {
            "phase": "Running",
            "totalSteps": 4,
            "cluster": {"attempt": 1, "config": "there"},
        }
        copied = dict(story.server.status)
        story.queue("first", managed)
        await story.reconcile()
        assert (story.server.applied, story.server.made, story.server.status) == (["Workload"], [], copied)
        story.queue("first", managed, "spec.suspend=true")
        await story.reconcile()
        assert story.workload is None

    tell(scenario)


def dispatch(story: Queued, *overrides: str) -> None:
    """The job of the first cluster, as the other cluster runs it."""
    story.server.status = {"phase": "Running", "totalSteps": 4, "cluster": {"attempt": 1, "config": "there"}}
    story.queue("first", f"spec.managedBy={MULTIKUEUE}", *overrides)


@pytest.mark.parametrize("overrides", [(), ("spec.steps=0",)], ids=["valid", "invalid"])
def test_an_evicted_job_gives_its_quota_back_on_the_cluster_that_dispatches_it(overrides):
    async def scenario(story: Queued) -> None:
        dispatch(story)
        await story.reconcile()
        uid = story.workload["metadata"]["uid"]
        story.admit(story.workload, "Evicted")
        dispatch(story, *overrides)
        await story.reconcile()
        assert story.workload["metadata"]["uid"] == uid
        held = {c["type"]: c["status"] for c in story.workload["status"]["conditions"]}
        assert (held["QuotaReserved"], held["Admitted"]) == ("False", "False")

    tell(scenario)


def test_a_dispatched_job_that_outgrows_its_quota_lines_up_again():
    async def scenario(story: Queued) -> None:
        dispatch(story)
        await story.reconcile()
        story.admit(story.workload)
        dispatch(story, "spec.checkpoint.everySteps=2")
        await story.reconcile()
        assert "Admitted" in story.conditions()  # what runs there keeps its quota
        dispatch(story, "spec.generator.replicas=3")
        for _ in range(2):
            await story.reconcile()
        counts = {each["name"]: each["count"] for each in story.workload["spec"]["podSets"]}
        assert (counts["generator"], story.conditions()) == (3, {})

    tell(scenario)


@pytest.mark.parametrize(("seconds", "deleted"), [(0, ["first"]), (3600, [])])
def test_the_cluster_that_dispatches_a_job_deletes_it_once_its_copied_end_is_old_enough(seconds, deleted):
    async def scenario(story: Queued) -> None:
        dispatch(story, f"spec.ttlSecondsAfterFinished={seconds}")
        await story.reconcile()
        assert story.deleted_jobs == []
        ended = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        story.server.status = {"phase": "Succeeded", "totalSteps": 4, "completionTime": ended}
        story.queue("first", f"spec.managedBy={MULTIKUEUE}", f"spec.ttlSecondsAfterFinished={seconds}")
        again = await story.reconcile()
        assert (story.deleted_jobs, again is None) == (deleted, seconds == 0)

    tell(scenario)


@pytest.mark.parametrize(
    ("override", "reason", "message"),
    [
        ("spec.steps=0", "ValidationFailed", "spec.steps"),
        ("spec.runtime={name: gone}", "RuntimeNotFound", "gone"),
        ("spec.steps=4", "WorkloadRefused", "Kueue 0.15"),
    ],
)
def test_an_event_tells_why_a_job_is_not_dispatched(override, reason, message):
    async def scenario(story: Queued) -> None:
        def refuse(body: Body) -> None:
            if body["kind"] == "Workload":
                raise ApiError(404, "", "404 page not found", kind="Workload")

        story.server.refuse = refuse
        story.queue("first", f"spec.managedBy={MULTIKUEUE}", override)
        with suppress(ApiError):
            await story.reconcile()
        assert [*story.events] == [reason]
        assert message in story.events[reason]
        assert story.server.status == {}  # which is the other cluster's

    tell(scenario)


def test_an_event_tells_of_a_job_without_the_label_of_a_queue():
    async def scenario(story: Queued) -> None:
        story.queue("first", f"spec.managedBy={MULTIKUEUE}")
        body = story.cache.job(KEY)
        assert body is not None
        del body["metadata"]["labels"][QUEUE]
        story.cache.put(story.server.stored(body))
        await story.reconcile()
        assert story.workload is None
        assert story.events == {"NoQueue": f"no cluster is asked to run the job: it has no label {QUEUE}"}

    tell(scenario)


def test_the_cluster_that_a_job_is_dispatched_to_runs_it_on_the_workload_that_came_first():
    async def scenario(story: Queued) -> None:
        first = Queued()
        first.queue("there", f"spec.managedBy={MULTIKUEUE}")
        await first.reconcile()
        await first.reconciler.close()
        # As MultiKueue makes both: with the labels and annotations of the first cluster, and no owner.
        meta = {
            key: first.workload["metadata"][key] for key in ("name", "namespace", "labels", "annotations")
        }
        meta["labels"] = {**meta["labels"], ORIGIN: "multikueue"}
        story.admit({**first.workload, "metadata": meta})
        uid = story.workload["metadata"]["uid"]
        story.queue("here", "spec.ttlSecondsAfterFinished=0", **{ORIGIN: "multikueue"})
        await story.reconcile()
        assert story.trainers() == [("1", "start.json")]
        assert story.workload["metadata"]["uid"] == uid
        assert "Workload" not in story.server.applied
        story.end("job-trainer-0")
        for _ in range(3):
            story.queue("here", "spec.ttlSecondsAfterFinished=0", **{ORIGIN: "multikueue"})
            await story.reconcile()
            for pod in story.cache.pods(KEY):  # the end takes the others
                story.cache.drop(pod)
        assert story.server.status["phase"] == "Succeeded"
        assert story.deleted_jobs == []  # its status has yet to be copied
        assert (story.workload["metadata"]["uid"], story.conditions()["Finished"]) == (uid, "Succeeded")

    tell(scenario)
