"""Pods are made and stopped by the admission that was observed, and by no other; a dictionary stands in for the API
server, and these tests for Kueue."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.operator.cluster.test_reconciler import KEY, Server, Story, tell

from rlhf_operator.cluster.watching.cache import Cache
from rlhf_operator.job.names import QUEUE
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.supervision import budget

Body = dict[str, Any]
ROLES = ("trainer", "generator", "reward", "reference")
NO_KIND = ApiError(
    404, "NotFound", "GET workloads: the server could not find the requested resource", kind="Workload"
)


class Kueue(Server):
    """Stores the job's Workload too."""

    def __init__(self, cache: Cache) -> None:
        super().__init__(cache)
        self.workload: Body | None = None
        self.unserved: ApiError | None = None
        self.held = False
        """A finalizer of Kueue keeps a Workload that was deleted."""
        self.after_status: Callable[[], None] = lambda: None

    async def apply_status(self, body: Body) -> Body:
        answer = await super().apply_status(body)
        self.after_status()
        return answer

    async def apply(self, body: Body) -> Body:
        if body["kind"] != "Workload":
            return await super().apply(body)
        self.applied.append("Workload")
        before = self.workload or {"metadata": {}}
        self.workload = self.stored({**body, **before, "metadata": body["metadata"] | before["metadata"]})
        return self.workload

    async def get(self, kind: str, namespace: str | None, name: str) -> Body:
        if kind == "ResourceFlavor":
            return {"metadata": {"name": name}, "spec": {"nodeLabels": {"pool": name}}}
        if kind == "Workload" and self.unserved:
            raise self.unserved
        if kind == "Workload" and self.workload:
            return self.workload
        return await super().get(kind, namespace, name)

    async def merge_status(self, _kind: str, _namespace: str, _name: str, patch: Body) -> Body:
        current = self.workload
        if current is None:
            raise ApiError(404, "NotFound", 'workloads "job" not found', kind="Workload")
        if current["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified", kind="Workload")
        status = current.get("status", {}) | patch["status"]
        self.workload = self.stored({**current, "status": status})
        return self.workload

    async def delete(self, kind: str, namespace: str, name: str, **_: Any) -> Body | None:
        if kind != "Workload":
            for pod in self.cache.pods(KEY):
                if pod["metadata"]["name"] == name:
                    self.cache.drop(self.stored(pod))
            return await super().delete(kind, namespace, name)
        current, self.workload = self.workload, None
        if not self.held or current is None:
            return None
        self.workload = self.stored(current, deletionTimestamp="2026-01-01T00:00:00Z")
        return self.workload


class Queued(Story):
    """A job in a queue."""

    def __init__(self) -> None:
        super().__init__()
        self.server: Kueue = Kueue(self.cache)
        self.reconciler = self._reconciler()

    def submit(self, uid: str = "first", *overrides: str, generation: int = 1) -> None:
        super().submit(uid, *overrides, generation=generation)
        body = self.cache.job(KEY)
        assert body is not None
        body["metadata"]["labels"] = {QUEUE: "team"}
        self.cache.put(self.server.stored(body))

    def deliver(self, body: Body) -> None:
        """The watch tells of Kueue's change."""
        self.server.workload = self.server.stored(body)
        self.cache.put(self.server.workload)

    def answer(self, *conditions: str, flavor: str = "spot") -> None:
        assert self.server.workload is not None
        held = [{"type": each, "status": "True", "reason": "Test", "message": ""} for each in conditions]
        assigned = [{"name": role, "count": 1, "flavors": {"cpu": flavor}} for role in ROLES]
        admission = {"clusterQueue": "all", "podSetAssignments": assigned}
        self.deliver({**self.server.workload, "status": {"conditions": held, "admission": admission}})

    def pools(self) -> dict[str, str | None]:
        """Node label of every pod that was made."""
        pods = [body for body in self.server.made if body["kind"] == "Pod"]
        return {p["metadata"]["name"]: p["spec"].get("nodeSelector", {}).get("pool") for p in pods}

    async def admitted(self) -> None:
        self.submit()
        await self.reconcile()
        self.answer("QuotaReserved", "Admitted")


def queued(story: Callable[[Any], Any]) -> None:
    async def whole(_: Story) -> None:
        made = Queued()
        try:
            await story(made)
        finally:
            await made.reconciler.close()

    tell(whole)


PODS = {f"job-{role}-0" for role in ROLES}


@pytest.mark.parametrize("meanwhile", ["nothing", "evicted", "deleted", "moved"])
def test_pods_are_made_on_the_admission_that_was_planned_on_or_not_at_all(meanwhile):
    """Kueue's news come by the watch while the status is written."""

    async def scenario(story: Queued) -> None:
        def news() -> None:
            story.server.after_status = lambda: None
            if meanwhile == "evicted":
                story.answer("QuotaReserved", "Admitted", "Evicted")
            elif meanwhile == "moved":
                story.answer("QuotaReserved", "Admitted", flavor="on-demand")
            elif meanwhile == "deleted":
                story.cache.drop(story.server.stored(story.server.workload or {}))
                story.server.workload = None

        await story.admitted()
        story.server.after_status = news
        await story.reconcile()
        assert story.pools() == (dict.fromkeys(PODS, "spot") if meanwhile == "nothing" else {})
        await story.reconcile()
        later = {"nothing": dict.fromkeys(PODS, "spot"), "moved": dict.fromkeys(PODS, "on-demand")}
        assert story.pools() == later.get(meanwhile, {})

    queued(scenario)


@pytest.mark.parametrize("reason", [NO_KIND, ApiError(403, "", 'forbidden: User "rlhf" cannot get resource')])
def test_a_job_that_runs_is_not_stopped_because_nobody_says_whether_it_has_quota(monkeypatch, reason):
    """An operator that starts while Kueue is installed anew, or the API server has not found its definitions yet."""
    monkeypatch.setattr(budget, "_FIRST", 0.0)

    async def scenario(story: Queued) -> None:
        await story.admitted()
        await story.reconcile()
        story.run()
        story.cache.drop_uids("Workload", story.cache.uids("Workload"))
        await story.restart()
        story.server.unserved = reason
        for _ in range(3):
            await story.reconcile()
        assert {pod["metadata"]["name"] for pod in story.cache.pods(KEY)} == PODS
        assert story.reasons()["Suspended"] == "NotSuspended"
        (reward,) = (p for p in story.cache.pods(KEY) if p["metadata"]["name"] == "job-reward-0")
        story.cache.drop(reward)
        story.server.made.clear()
        for _ in range(2):  # a pod that goes meanwhile is not made beside its quota
            with pytest.raises(ApiError):
                await story.reconcile()
        assert (story.pools(), story.reasons()["PodsScheduled"]) == ({}, "PodsRefused")
        story.server.unserved = None  # though no watch tells of it
        await story.reconcile()
        assert story.pools() == {"job-reward-0": "spot"}
        story.server.workload = None
        await story.reconcile()
        assert story.reasons()["Suspended"] == "Suspending", "the server says that it is not there"

    queued(scenario)


@pytest.mark.parametrize("held", [False, True], ids=["gone", "held by a finalizer"])
def test_a_job_that_is_resumed_queues_anew_whatever_the_watch_has_told_of_its_last_workload(held):
    async def scenario(story: Queued) -> None:
        await story.admitted()
        await story.reconcile()
        before, story.server.held = story.server.workload, held
        story.submit("first", "spec.suspend=true", generation=2)
        for _ in range(3):
            await story.reconcile()
        assert story.server.status["phase"] == "Suspended"
        assert before is not None
        late = {
            **before,
            "metadata": {**before["metadata"], "resourceVersion": str(story.server.version - 1)},
        }
        story.cache.put(late)  # of before the deletion
        story.server.made.clear()
        story.server.applied.clear()
        story.submit("first", generation=3)
        await story.reconcile()
        assert story.pools() == {}
        assert ("Workload" in story.server.applied) is not held
        if held:  # Kueue lets go of it
            story.cache.drop(story.server.stored(story.server.workload or {}))
            story.server.workload = None
            await story.reconcile()
            assert "Workload" in story.server.applied
        story.answer("QuotaReserved", "Admitted")
        await story.reconcile()
        assert story.pools() == dict.fromkeys(PODS, "spot")

    queued(scenario)
