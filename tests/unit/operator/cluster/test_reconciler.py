"""State that a reconciler keeps between reconciles of a job; a dictionary stands in for the API server."""

import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.api.manifests import document

from rlhf_api.contract.sandbox_server import CLAIMED
from rlhf_api.manifest import spec_size
from rlhf_operator.cluster import reconcile as module
from rlhf_operator.cluster.act import pod_client
from rlhf_operator.cluster.act.recorder import Recorder
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.decide import pod_groups
from rlhf_operator.cluster.decide.stopping import ASK_AGAIN_SECONDS
from rlhf_operator.cluster.observe import desired
from rlhf_operator.cluster.reconcile import Reconciler
from rlhf_operator.cluster.telemetry import Telemetry
from rlhf_operator.cluster.watching.cache import Cache
from rlhf_operator.job.names import MANAGED_BY
from rlhf_operator.kube.api import Api
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.kube.clock import ServerClock
from rlhf_operator.supervision import budget

KEY = ("ns", "job")
SANDBOXES = ("spec.environment={path: 'a:B'}", "spec.sandbox={replicas: 2, pods: {image: i}}")
Body = dict[str, Any]


class Server(Api):
    """Takes everything but what `refuse` raises an error for."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.version = cache, 10
        self.made: list[Body] = []
        self.applied: list[str] = []
        self.configs: dict[str, Body] = {}
        self.scaled: list[tuple[Any, ...]] = []
        self.status: Body = {}
        self.clock = ServerClock()
        self.fence = lambda: True
        self.refuse: Callable[[Body], None] = lambda _body: None

    def stored(self, body: Body, **metadata: Any) -> Body:
        self.version += 1
        meta = {
            "uid": f"uid-{self.version}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **body["metadata"],
        }
        return {**body, "metadata": {**meta, **metadata, "resourceVersion": str(self.version)}}

    async def apply_status(self, body: Body) -> Body:
        self.status = body["status"]
        return self.stored({**(self.cache.job(KEY) or {}), "status": body["status"]})

    async def apply(self, body: Body) -> Body:
        self.refuse(body)
        self.applied.append(body["kind"])
        self.configs |= {body["metadata"]["name"]: body} if body["kind"] == "ConfigMap" else {}
        return self.stored(body)

    async def create(self, body: Body, *, dry_run: bool = False) -> Body:
        self.refuse(body)
        made = self.stored(body)
        self.made += [] if dry_run else [made]
        return made

    async def get(self, kind: str, _namespace: str | None, name: str) -> Body:
        if kind == "ConfigMap":
            return self.configs[name]
        for pod in self.cache.pods(KEY) if kind == "Pod" else ():
            if pod["metadata"]["name"] == name:
                return pod
        raise ApiError(404, "NotFound", f"{kind} {name} not found", kind=kind)

    async def scale(self, *arguments: Any) -> None:
        self.scaled.append(arguments)

    async def delete(self, _kind: str, _namespace: str, name: str, **_: Any) -> Body | None:
        self.made = [body for body in self.made if body["metadata"]["name"] != name]
        return None


class Story:
    """One job, whose looks are taken one by one."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.server = Server(self.cache)
        self.reconciler = self._reconciler()

    def _reconciler(self) -> Reconciler:
        settings = Settings("image", b"k" * 48)
        return Reconciler(settings, self.server, self.cache, Recorder(self.server), Telemetry())

    async def restart(self) -> None:
        """Another process of the operator, which knows what is stored and nothing else."""
        await self.reconciler.close()
        self.reconciler = self._reconciler()

    def submit(self, uid: str, *overrides: str, generation: int = 1) -> None:
        """A later generation keeps the status."""
        body = document(*overrides) | {"status": self.server.status if generation > 1 else {}}
        body["metadata"] |= {"namespace": "ns", "uid": uid, "generation": generation}
        self.cache.put(self.server.stored(body))

    async def reconcile(self) -> float | None:
        return await self.reconciler.reconcile(KEY)

    def run(self) -> None:
        """Every pod gets to run."""
        since = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        container = {"name": "role", "started": True, "state": {"running": {"startedAt": since}}}
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [container]}
        for pod in self.cache.pods(KEY):
            spec = {**pod["spec"], "nodeName": "node-1"}
            self.cache.put(self.server.stored({**pod, "spec": spec, "status": {"phase": "Running", **ready}}))

    def reasons(self) -> dict[str, str]:
        return {c["type"]: c["reason"] for c in self.server.status["conditions"]}

    def trainers(self) -> list[tuple[str, str]]:
        """Attempt and configuration of every trainer pod that was made."""
        trainer_pods = [pod for pod in self.server.made if pod["metadata"]["name"] == "job-trainer-0"]
        configs = [
            {e["name"]: e.get("value") for e in p["spec"]["containers"][0]["env"]} for p in trainer_pods
        ]
        return [
            (pod["metadata"]["labels"]["rlhf.dev/attempt"], config["RLHF_RUN_CONFIG"].rpartition("/")[2])
            for pod, config in zip(trainer_pods, configs, strict=True)
        ]


def tell(story: Callable[[Story], Awaitable[None]]) -> None:
    async def whole() -> None:
        made = Story()
        try:
            await story(made)
        finally:
            await made.reconciler.close()

    asyncio.run(whole())


def test_a_refusal_is_over_with_the_first_look_that_nothing_is_refused_in():
    """A call that timed out though its pod was stored: nothing is left to make."""

    async def scenario(story: Story) -> None:
        def times_out(body: Body) -> None:
            if body["metadata"]["name"] == "job-reward-0":
                story.cache.put(story.server.stored(body))
                story.server.refuse = lambda _body: None
                raise ApiError(0, "TimeoutError", "POST pods: no answer within 10 s")

        story.submit("first")
        story.server.refuse = times_out
        with pytest.raises(ApiError, match="no answer"):
            await story.reconcile()
        story.run()
        await story.reconcile()  # which is told what the last one met
        assert story.reasons()["Stalled"] == "PodsRefused"
        await story.reconcile()
        assert (story.reasons()["Stalled"], story.reasons()["PodsScheduled"]) == ("NotStalled", "Scheduled")
        (trainer,) = (p for p in story.cache.pods(KEY) if p["metadata"]["name"] == "job-trainer-0")
        story.cache.drop(trainer)
        for _ in range(2):
            await story.reconcile()
            await asyncio.sleep(0.6)  # the pause before a start
        assert story.trainers() == [("1", "start.json"), ("2", "resume.json")]

    tell(scenario)


@pytest.mark.parametrize(
    ("manager", "ours"), [("kueue.x-k8s.io/multikueue", False), ("rlhf.dev/operator", True)]
)
def test_a_job_that_another_controller_manages_is_left_alone(manager, ours):
    async def scenario(story: Story) -> None:
        story.submit("first", f"spec.managedBy={manager}")
        await story.reconcile()
        applied = [kind for kind in story.server.applied if kind != "Event"]  # that it lacks a queue's label
        assert bool(story.server.made or applied or story.server.status) == ours

    tell(scenario)


def test_a_status_of_which_the_definition_lacks_fields_is_not_written_at_every_look(monkeypatch):
    """The API server drops what an older definition does not have."""

    async def scenario(story: Story) -> None:
        stores, writes = story.server.apply_status, list[Body]()

        async def drops(body: Body) -> Body:
            writes.append(status := dict(body["status"]))
            status["cluster"] = {k: v for k, v in status["cluster"].items() if k != "config"}
            del status["selector"]
            return await stores({**body, "status": status})

        monkeypatch.setattr(story.server, "apply_status", drops)
        story.submit("first")
        await story.reconcile()
        story.run()
        await story.reconcile()
        before = len(writes)
        for _ in range(2):
            await story.reconcile()
        assert len(writes) == before == 2

    tell(scenario)


def no_pods(error: ApiError) -> Callable[[Body], None]:
    """A server that answers `error` to every Pod."""

    def refuse(body: Body) -> None:
        if body["kind"] == "Pod":
            raise error

    return refuse


@pytest.mark.parametrize("meanwhile", ["nothing", "restart", "suspend"])
def test_an_attempt_that_was_refused_is_no_attempt(meanwhile):
    async def scenario(story: Story) -> None:
        story.submit("first")
        story.server.refuse = no_pods(ApiError(403, "Forbidden", "exceeded quota"))
        for _ in range(3):
            with pytest.raises(ApiError, match="exceeded quota"):
                await story.reconcile()
        assert story.reasons()["PodsScheduled"] == "PodsRefused"
        if meanwhile == "restart":
            await story.restart()
        if meanwhile == "suspend":
            story.submit("first", "spec.suspend=true", generation=2)
            await story.reconcile()
            assert story.server.status["phase"] == "Suspended"
            story.submit("first", generation=3)
        story.server.refuse = lambda _body: None
        await story.reconcile()
        assert story.trainers() == [("1", "start.json")]
        story.run()
        await story.reconcile()
        assert "unmade" not in story.server.status["cluster"]

    tell(scenario)


def test_what_a_refused_look_had_to_tell_is_told_and_so_is_the_refusal():
    """As events: `kubectl describe` is where people look for an exhausted quota."""

    async def scenario(story: Story) -> None:
        events = list[tuple[str, str]]()

        def refuse(body: Body) -> None:
            if body["kind"] == "Event":
                events.append((body["reason"], body["message"]))
            elif body["kind"] == "Pod":
                raise ApiError(403, "Forbidden", "POST pods: exceeded quota", kind="Pod")

        story.submit("first", "spec.suspend=true")
        story.server.refuse = refuse
        await story.reconcile()
        story.submit("first", generation=2)
        for _ in range(2):
            with pytest.raises(ApiError, match="exceeded quota"):
                await story.reconcile()
        assert [reason for reason, _ in events] == ["Suspended", "Resumed", "PodsWaiting"]
        assert "exceeded quota" in events[-1][1]

    tell(scenario)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("deleted_pod", ["job-generator-1", "job-trainer-0"])
def test_a_job_that_has_trained_is_not_ended_by_a_pod_that_is_suddenly_invalid(
    monkeypatch, deleted_pod, resumed
):
    """Pods of the same configuration were accepted: a webhook in the cluster has changed it, and may be fixed soon."""
    monkeypatch.setattr(budget, "_FIRST", 0.0)
    two = "spec.generator.replicas=2"

    async def scenario(story: Story) -> None:
        story.submit("first", two)
        await story.reconcile()
        story.run()
        await story.reconcile()
        if resumed:
            story.submit("first", two, "spec.suspend=true", generation=2)
            await story.reconcile()
        for pod in story.cache.pods(KEY):
            if resumed or pod["metadata"]["name"] == deleted_pod:
                story.cache.drop(pod)
        if resumed:
            await story.reconcile()
            assert story.server.status["phase"] == "Suspended"
            story.submit("first", two, generation=3)

        def refuse(body: Body) -> None:
            if body["kind"] == "Pod" and body["metadata"]["name"] == deleted_pod:
                raise ApiError(422, "Invalid", "env[3]: Duplicate value", kind="Pod")

        story.server.refuse = refuse
        for _ in range(3):
            with pytest.raises(ApiError, match="Duplicate"):
                await story.reconcile()
        assert (story.server.status["phase"], story.reasons()["Stalled"]) == ("Provisioning", "PodsRefused")
        story.server.refuse = lambda _body: None
        story.server.made.clear()
        await story.reconcile()
        assert deleted_pod in {pod["metadata"]["name"] for pod in story.server.made}

    tell(scenario)


def test_a_resumed_job_of_another_configuration_is_ended_by_an_invalid_pod():
    """It is the changed spec that is wrong: no pod of it was ever accepted."""

    async def scenario(story: Story) -> None:
        story.submit("first")
        await story.reconcile()
        story.run()
        await story.reconcile()
        story.submit("first", "spec.suspend=true", generation=2)
        await story.reconcile()
        for pod in story.cache.pods(KEY):
            story.cache.drop(pod)
        await story.reconcile()
        story.submit("first", "spec.pods.priorityClass=none", generation=3)
        story.server.refuse = no_pods(ApiError(422, "Invalid", "priorityClassName: no such", kind="Pod"))
        with pytest.raises(ApiError, match="no such"):
            await story.reconcile()
        await story.reconcile()
        assert (story.server.status["phase"], story.reasons()["Failed"]) == ("Failed", "InvalidPod")

    tell(scenario)


def test_a_pod_that_its_namespace_made_invalid_is_asked_for_again_and_the_job_goes_on():
    """A LimitRange's default limit below the job's request is refused as the job's own mistake would be."""

    async def scenario(story: Story) -> None:
        created = list[str]()

        def refuse(body: Body) -> None:
            if body["kind"] == "Pod":
                created.append(body["metadata"]["name"])
                raise ApiError(
                    422, "Invalid", "requests: must be less than or equal to cpu limit", kind="Pod"
                )

        story.submit("first")
        story.server.refuse = refuse
        with pytest.raises(ApiError, match="less than"):
            await story.reconcile()
        created.clear()
        for _ in range(3):
            again = await story.reconcile()
        assert (story.reasons()["Failed"], again, created) == ("InvalidPod", ASK_AGAIN_SECONDS, [])
        before, story.server.clock.local = story.server.status, lambda: time.time() + ASK_AGAIN_SECONDS
        await story.reconcile()
        assert (created, story.server.status, story.trainers()) == (["job-trainer-0"], before, [])
        story.server.refuse = lambda _body: None
        await story.reconcile()
        assert (story.server.status["phase"], story.trainers()) == ("Provisioning", [("1", "start.json")])
        assert "Failed" not in story.reasons()

    tell(scenario)


def test_a_default_request_above_a_limit_of_the_namespace_is_left_out():
    """A LimitRange's default limit: nobody wrote the request that is refused."""

    async def scenario(story: Story) -> None:
        def refuse(body: Body) -> None:
            if body["kind"] == "Pod" and body["spec"]["containers"][0]["resources"]:
                raise ApiError(
                    422, "Invalid", "requests: must be less than or equal to memory limit", kind="Pod"
                )

        story.server.refuse = refuse
        story.submit("first", "spec.model.parameters=1e9")
        await story.reconcile()
        assert story.trainers() == [("1", "start.json")]
        own = ("spec.model.parameters=1e9", "spec.pods.resources={requests: {memory: 2Gi}}")
        story.submit("second", *own)
        with pytest.raises(ApiError, match="less than"):
            await story.reconcile()

    tell(scenario)


def test_a_refusal_for_good_is_of_the_spec_that_was_refused():
    """Somebody corrects the spec between the refusal and the look that ends the job for it."""

    async def scenario(story: Story) -> None:
        story.submit("first", "spec.pods.priorityClass=none")
        story.server.refuse = no_pods(ApiError(422, "Invalid", "priorityClassName: no such", kind="Pod"))
        with pytest.raises(ApiError, match="no such"):
            await story.reconcile()
        story.server.refuse = lambda _body: None
        story.submit("first", generation=2)
        assert await story.reconcile() is not None
        assert (story.reasons()["Failed"], story.server.status["observedGeneration"]) == ("InvalidPod", 1)
        await story.reconcile()
        assert (story.server.status["phase"], story.server.status["observedGeneration"]) == (
            "Provisioning",
            2,
        )
        assert story.trainers() == [("1", "start.json")]
        (trainer,) = (pod for pod in story.server.made if pod["metadata"]["name"] == "job-trainer-0")
        assert "priorityClassName" not in trainer["spec"]

    tell(scenario)


def test_a_trainer_that_lost_its_label_is_counted_once_while_it_ends(monkeypatch):
    """Its name is taken until then: it is no pod of the attempt that is to follow."""
    monkeypatch.setattr(budget, "_FIRST", 0.0)

    async def scenario(story: Story) -> None:
        def taken(body: Body) -> None:
            if body["metadata"]["name"] == "job-trainer-0":
                raise ApiError(409, "AlreadyExists", "pods job-trainer-0 already exists", kind="Pod")

        story.submit("first")
        await story.reconcile()
        story.run()
        await story.reconcile()
        (trainer,) = (p for p in story.cache.pods(KEY) if p["metadata"]["name"] == "job-trainer-0")
        labels = {k: v for k, v in trainer["metadata"]["labels"].items() if k != MANAGED_BY}
        ending = {"labels": labels, "deletionTimestamp": "2026-01-01T00:00:30Z"}
        story.cache.put(story.server.stored(trainer, **ending))
        story.server.refuse = taken
        for _ in range(4):
            await story.reconcile()
        cluster = story.server.status["cluster"]
        assert (cluster["attempt"], cluster["restarts"]["trainer"]["disruptions"]) == (2, 1)

    tell(scenario)


@pytest.mark.parametrize("keep", [False, True])
def test_a_pod_whose_node_is_silent_is_given_up_unless_the_chart_says_no(monkeypatch, keep):
    monkeypatch.setattr(pod_groups, "LOST_SECONDS", -1)
    forced: list[str] = []

    async def scenario(story: Story) -> None:
        async def delete(
            _kind: str, _namespace: str, name: str, *, grace: int | None = None, **_: Any
        ) -> None:
            forced.extend([name] if grace == 0 else [])

        monkeypatch.setattr(story.server, "delete", delete)
        story.reconciler._settings = replace(story.reconciler._settings, keep_lost_pods=keep)
        story.submit("first")
        await story.reconcile()
        story.run()
        await story.reconcile()
        (trainer,) = (p for p in story.cache.pods(KEY) if p["metadata"]["name"] == "job-trainer-0")
        story.cache.put(story.server.stored(trainer, deletionTimestamp="2026-01-01T00:00:30Z"))
        await story.reconcile()
        stalled = next(c for c in story.server.status["conditions"] if c["type"] == "Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "NodeLost")

    tell(scenario)
    assert forced == ([] if keep else ["job-trainer-0"])


@pytest.mark.parametrize("deleted", [False, True], ids=["a job that goes on", "a job that a finalizer holds"])
def test_a_pod_is_given_up_once_its_grace_period_was_observed(monkeypatch, deleted):
    async def scenario(story: Story) -> None:
        clock, forced = 0.0, list[str]()
        delete = story.server.delete

        async def record(kind: str, namespace: str, name: str, **options: Any) -> Body | None:
            forced.extend([name] * (options.get("grace") == 0))
            return await delete(kind, namespace, name, **options)

        story.submit("first")
        await story.reconcile()
        story.run()
        if deleted:
            body = story.cache.job(KEY) or {}
            going = {"deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["example.com/holds"]}
            story.cache.put(story.server.stored(body, **going))
        (trainer,) = (p for p in story.cache.pods(KEY) if p["metadata"]["name"] == "job-trainer-0")
        ending = {"deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 300}
        story.cache.put(story.server.stored(trainer, **ending))
        monkeypatch.setattr(story.server, "delete", record)
        story.reconciler._deletions._clock = lambda: clock
        for since in (0.0, 200.0, 329.0):
            clock = since
            await story.reconcile()
            assert not forced
        clock = 331.0
        await story.reconcile()
        assert forced == ["job-trainer-0"]

    tell(scenario)


def test_a_job_made_again_under_its_name_inherits_nothing():
    """`kubectl replace --force`: no look saw that the first one was gone."""

    async def scenario(story: Story) -> None:
        story.submit("first")
        story.server.refuse = no_pods(
            ApiError(422, "Invalid", "spec.volumes[4].name: Duplicate value", kind="Pod")
        )
        with pytest.raises(ApiError, match="Duplicate"):
            await story.reconcile()
        story.server.refuse = lambda _body: None
        story.submit("second")
        story.server.applied.clear()
        await story.reconcile()
        assert story.server.status["phase"] == "Provisioning"
        assert {"ConfigMap", "NetworkPolicy"} <= {*story.server.applied}

    tell(scenario)


def test_a_job_whose_predecessors_pods_still_end_waits_with_its_first_attempt():
    async def scenario(story: Story) -> None:
        story.submit("first")
        await story.reconcile()
        story.submit("second")
        story.server.refuse = no_pods(ApiError(409, "AlreadyExists", "the name is taken"))
        for _ in range(3):
            with pytest.raises(ApiError, match="of an earlier job of this name has not gone yet"):
                await story.reconcile()
        story.cache.drop_uids("Pod", story.cache.uids("Pod"))
        story.server.refuse = lambda _body: None
        story.server.made.clear()
        await story.reconcile()
        assert story.trainers() == [("1", "start.json")]

    tell(scenario)


def test_a_deleted_jobs_trainer_is_forgotten_with_it():
    async def scenario(story: Story) -> None:
        story.submit("first")
        await story.reconcile()
        story.run()
        await story.reconcile()
        assert len(story.reconciler._trainers._known) == 1
        story.cache.drop_uids("RLHFJob", ["first"])
        assert await story.reconcile() is None
        assert not story.reconciler._trainers._known

    tell(scenario)


def test_generators_are_scaled_from_the_job_that_was_looked_at(monkeypatch):
    """A kubectl scale that comes meanwhile is seen by the cache and not by the plan."""
    planned = module.plan

    async def scenario(story: Story) -> None:
        story.submit("first")
        written = story.server.apply_status

        async def meanwhile(body: Body) -> Body:
            answer = await written(body)
            story.submit("first", "spec.generator.replicas=3")
            return answer

        monkeypatch.setattr(module, "plan", lambda *args: replace(planned(*args), generators=2))
        monkeypatch.setattr(story.server, "apply_status", meanwhile)
        before = story.server.version
        await story.reconcile()
        assert story.server.scaled == [("RLHFJob", "ns", "job", 2, str(before + 1))]

    tell(scenario)


@pytest.mark.parametrize("suspend", [False, True], ids=["members", "stop"])
def test_who_no_longer_leads_gives_a_trainer_no_order(monkeypatch, suspend):
    """A process that was frozen in the middle of a look would push the members of then, or stop a job that goes on."""

    async def scenario(story: Story) -> None:
        story.submit("first")
        await story.reconcile()
        story.run()
        trainers = story.reconciler._trainers
        monkeypatch.setattr(trainers, "_listening", lambda _job, pods: pods[0])
        if suspend:
            story.submit("first", "spec.suspend=true", generation=2)
        story.server.fence = lambda: False
        with pytest.raises(ApiError, match="no longer holds the lease"):
            await story.reconcile()

    tell(scenario)


def test_a_gang_that_starts_again_has_its_group(monkeypatch):
    """Somebody may have deleted it, which no listing shows; without it no scheduler places the pods."""
    monkeypatch.setattr(budget, "_FIRST", 0.0)

    async def scenario(story: Story) -> None:
        story.submit("first", "spec.scheduling.gang=volcano")
        await story.reconcile()
        story.run()
        for _ in range(2):
            await story.reconcile()
        (trainer,) = (p for p in story.cache.pods(KEY) if p["metadata"]["name"] == "job-trainer-0")
        story.server.applied.clear()
        await story.reconcile()
        assert "PodGroup" not in story.server.applied
        story.cache.drop(trainer)
        await story.reconcile()
        assert "PodGroup" in story.server.applied
        assert story.trainers()[-1] == ("2", "resume.json")

    tell(scenario)


def test_many_jobs_are_asked_less_often_and_a_restart_is_not_put_off_by_them(monkeypatch):
    planned = module.plan

    async def scenario(story: Story) -> None:
        for number in range(2000):
            body = document()
            body["metadata"] |= {"name": f"other-{number}", "namespace": "ns", "uid": str(number)}
            story.cache.put(story.server.stored({**body, "status": {"phase": "Running"}}))
        story.submit("first")
        assert await story.reconcile() > 60
        monkeypatch.setattr(module, "plan", lambda *args: replace(planned(*args), due=0.5))
        assert await story.reconcile() == 0.5

    tell(scenario)


@pytest.mark.parametrize(
    ("left", "checked"),
    [
        ("nothing", False),
        ("a time to live", True),
        ("a later spec", True),
        ("a pod", True),
        ("GPUs that count", True),
        ("a place in the queue", True),
        ("a refused spec", True),
    ],
)
def test_an_operator_that_starts_checks_specs_of_ended_jobs_alone_that_have_something_left(
    left, checked, monkeypatch
):
    checked_bodies, check = list[Body](), desired.runnable
    monkeypatch.setattr(desired, "runnable", lambda body: checked_bodies.append(body) or check(body))

    async def scenario(story: Story) -> None:
        over = {"phase": "Succeeded", "totalSteps": 1, "observedGeneration": 1}
        story.server.status = over | ({"gpus": 2} if left == "GPUs that count" else {})
        if left == "a refused spec":
            cause = {"type": "Failed", "status": "True", "reason": "ValidationFailed"}
            failed = [{**cause, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
            story.server.status |= {"phase": "Failed", "conditions": failed}
        body = document(*["spec.ttlSecondsAfterFinished=600"] * (left == "a time to live"))
        body["metadata"] |= {"namespace": "ns", "uid": "first", "generation": 1 + (left == "a later spec")}
        story.cache.put(story.server.stored({**body, "status": story.server.status}))
        owner = {"kind": "RLHFJob", "name": "job", "uid": "first", "controller": True}
        rest = {
            "name": "rest",
            "namespace": "ns",
            "labels": {"rlhf.dev/job": "job"},
            "ownerReferences": [owner],
        }
        if kind := {"a pod": "Pod", "a place in the queue": "Workload"}.get(left):
            story.cache.put(story.server.stored({"kind": kind, "metadata": rest, "spec": {}}))
        with suppress(ApiError):
            await story.reconcile()

    tell(scenario)
    assert bool(checked_bodies) is checked


def test_of_many_pods_few_are_in_memory_and_the_loop_has_a_turn_between_two(monkeypatch):
    async def story(one: Story) -> None:
        turns, built, waiting, most = 0, [], 0, 0
        build, create = pod_client.build_pod, one.server.create

        async def beat() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        def counted(*given):
            built.append(turns)
            return build(*given)

        async def slow(body, **_):
            nonlocal waiting, most
            waiting += body["kind"] == "Pod"
            most = max(most, waiting)
            for _ in range(100):
                await asyncio.sleep(0)
            waiting -= body["kind"] == "Pod"
            return await create(body)

        monkeypatch.setattr(pod_client, "build_pod", counted)
        one.server.create = slow
        one.submit("1", "spec.generator.replicas=100")
        beating = asyncio.create_task(beat())
        await one.reconcile()
        beating.cancel()
        assert len(built) == len(set(built)) == 103
        assert most == pod_client.MOST_BODIES

    tell(story)


def test_jobs_that_are_too_large_are_refused_one_at_a_time():
    """Each write of their statuses takes an API server seconds."""

    async def story(one: Story) -> None:
        large = {"template": {"spec": {"note": "x" * spec_size.MOST_BYTES}}}
        keys = [("ns", name) for name in ("first", "second")]
        for _, name in keys:
            body = document()
            body["spec"]["pods"] = large
            body["metadata"] |= {"name": name, "namespace": "ns", "uid": name, "generation": 1}
            one.cache.put(one.server.stored(body))
        written, go = list[str](), asyncio.Event()

        async def apply_status(body: Body) -> Body:
            written.append(body["metadata"]["name"])
            assert "must have at most 262,144 bytes" in body["status"]["message"]
            await go.wait()
            return one.server.stored({**(one.cache.job(("ns", written[-1])) or {}), "status": body["status"]})

        one.server.apply_status = apply_status
        reconciles = [asyncio.create_task(one.reconciler.reconcile(key)) for key in keys]
        assert await reconciles[1] == module.LARGE_SECONDS
        assert written == ["first"]
        go.set()
        assert await reconciles[0] is None
        await one.reconciler.reconcile(keys[1])
        assert written == ["first", "second"]

    tell(story)


def test_a_sandbox_is_replaced_by_two_calls_and_nothing_is_written_for_it(monkeypatch):
    """Nor is a status, whatever is ready meanwhile, nor a Secret that is there."""
    calls = []

    async def replace_one(story: Story) -> None:
        story.submit("a", *SANDBOXES)
        await story.reconcile()
        story.run()
        await story.reconcile()
        bodies = {pod["metadata"]["name"]: pod for pod in story.cache.pods(KEY)}
        counted = ("create", "delete", "apply", "apply_status", "get", "scale")
        for name in counted:
            monkeypatch.setattr(story.server, name, counting(name, getattr(story.server, name)))
        ended = {
            "name": "role",
            "state": {
                "terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:00:00Z", "message": CLAIMED}
            },
        }
        spent = bodies["job-sandbox-1"]
        status = {"phase": "Succeeded", "containerStatuses": [ended]}
        story.cache.put(story.server.stored({**spent, "status": status}))
        await story.reconcile()
        assert calls == ["delete"]
        story.cache.drop(story.server.stored(spent, uid=spent["metadata"]["uid"]))
        await story.reconcile()
        await story.reconcile()
        assert calls == ["delete", "create"]

    def counting(name, call):
        async def counted(*arguments, **named):
            calls.append(name)
            return await call(*arguments, **named)

        return counted

    tell(replace_one)
