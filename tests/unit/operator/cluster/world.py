"""A job and its pods as an API server would show them, for tests of the pure plan: every step of the plan is carried
out on it, wholly or in part."""

import datetime
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.unit.api.manifests import document

from rlhf_api.contract.report import TrainerStatus
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.runtime import NamedRuntime
from rlhf_api.roles import Role
from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.config.settings import Defaults
from rlhf_operator.cluster.decide.next_step import Plan
from rlhf_operator.cluster.decide.plan import plan
from rlhf_operator.cluster.decide.refusal import leave_alone, refuse, reopen_job
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import build_pod
from rlhf_operator.cluster.observe.desired import Wait, active_config, desired_state
from rlhf_operator.cluster.observe.observed import Observed
from rlhf_operator.job.names import ATTEMPT, INDEX, RANK, ROLE, pod_name
from rlhf_operator.job.shared_pod import read_pods
from rlhf_operator.job.snapshot import Job
from rlhf_operator.job.trimmed import trim

T, G, R, F = Role.TRAINER, Role.GENERATOR, Role.REWARD, Role.REFERENCE
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TODAY = Defaults(image="trainer:1")
"""The settings of the operator that a world begins with."""
_uids = itertools.count()


def stamp(now: datetime.datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class World:
    """One job called `job`; `pods` are bodies by name, `configs` what its ConfigMaps hold."""

    overrides: tuple[str, ...] = ()
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    configs: dict[str, Pinned] = field(default_factory=dict)
    status: JobStatus | None = None
    written: dict[str, Any] = field(default_factory=dict)
    """Fields of the status written by another release."""
    now: datetime.datetime = START
    generation: int = 0
    trainer: TrainerStatus | None = None
    events: list[tuple[str, str]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    ended_in_place: list[str] = field(default_factory=list)
    """Pods that their kubelets were to end, and that stay."""
    remembered: int | None = None
    """Attempt that the operator knows to have made; None once it has died."""
    expired: bool = False
    defaults: Defaults = TODAY
    limits: Limits | None = None
    runtime: NamedRuntime | Wait | None = None
    images: list[tuple[str, str]] = field(default_factory=list)
    """Default images that pods were made with, by name."""
    _applied: tuple[str, ...] | None = None
    _document: Any = None

    @property
    def job(self) -> Job:
        if self._applied != self.overrides:
            self._applied, self.generation = self.overrides, self.generation + 1
            self._document = document(*self.overrides)
        given = {"namespace": "ns", "uid": "job-uid", "generation": self.generation}
        status = self.status.model_dump(mode="json", by_alias=True) if self.status else {}
        metadata = self._document["metadata"] | given
        return Job.of({**self._document, "metadata": metadata, "status": status | self.written})

    def make_plan(self, **observation: Any) -> Plan:
        """As the reconciler does."""
        job = self.job
        counted = job.status.cluster.counted if job.status and job.status.cluster else ()
        pods = [pod for body in self.pods.values() for pod in read_pods(trim(body), counted)]
        if job.unreadable:
            return leave_alone(job.unreadable)
        try:
            running = self.configs.get(active_config(job) or "")
            want = desired_state(job, running, self.defaults, self.limits, self.runtime)
        except InvalidJob as error:
            return refuse(job, error, pods, self.now)
        todo = plan(
            Observed(
                reopen_job(job, want.spec),
                want,
                pods,
                self.trainer,
                created_attempt=self.remembered,
                **observation,
            ),
            self.now,
        )
        self.want = want
        if todo.companions:
            self.configs[want.pinned.name] = want.pinned
        return todo

    def carry_out(self, todo: Plan, *, only: Callable[[str], bool] = lambda _what: True) -> None:
        """Carries out a plan as the operator does; `only` selects the parts that it does before it ends."""
        if not only("status"):
            return
        self.status = todo.status or self.status
        for deletion in todo.delete:
            body = self.pods.get(deletion.name)
            if body and deletion.stays:
                self.ended_in_place.append(deletion.name)
            elif body and body["metadata"]["uid"] == deletion.uid and only("delete"):
                body["metadata"].setdefault("deletionTimestamp", stamp(self.now))
        for new in todo.create:
            name = pod_name("job", new.role, new.index, new.rank)
            if name not in self.pods and only("create"):
                self.pods[name] = new_pod(new.role, new.index, new.attempt, self.now, new.rank)
                self.pods[name]["spec"] = build_pod(self.want.pinned, new, "job-uid")["spec"]
                self.made.append(name)
                self.remembered = new.attempt if new.role is T else self.remembered
                self.images.append((name, self.want.pinned.defaults.image))
        self.events += [(event.reason, event.message) for event in todo.events]
        self.expired |= todo.expire

    def step(self, seconds: float = 1.0, **observation: Any) -> Plan:
        """Look, carry out, let time pass."""
        todo = self.make_plan(**observation)
        self.carry_out(todo)
        self.now += datetime.timedelta(seconds=seconds)
        return todo

    def settle(self, *, rounds: int = 40, seconds: float = 5.0) -> None:
        """Time passes, kubelets do their work, until for longer than any backoff nothing is made or deleted."""
        quiet = 0
        for _ in range(rounds):
            todo = self.step(seconds)
            self.kubelet()
            still = not (todo.create or todo.delete) and all(self.runs(n) or self.over(n) for n in self.pods)
            quiet = quiet + 1 if still else 0
            if quiet == (4 if seconds < 60 else 8):
                return
        raise AssertionError(f"never settles: {sorted(self.pods)} {self.status}")

    def kubelet(self) -> None:
        """Starts what is new, takes away what is being deleted."""
        for name, body in list(self.pods.items()):
            if "deletionTimestamp" in body["metadata"]:
                del self.pods[name]
            elif body["status"]["phase"] == "Pending":
                self.run(name)

    def run(self, name: str) -> None:
        state = {"running": {"startedAt": stamp(self.now)}}
        self.pods[name]["status"] = {
            "phase": "Running",
            "podIP": f"10.0.0.{len(name)}",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": container, "ready": True, "started": True, "state": state, "restartCount": 0}
                for container in self.containers(name)
            ],
        }
        self.pods[name]["spec"] = {**self.pods[name].get("spec", {}), "nodeName": "node-1"}

    def containers(self, name: str) -> list[str]:
        """Names of a pod's containers."""
        return [each["name"] for each in self.pods[name].get("spec", {}).get("containers", ())] or ["role"]

    def crash(self, name: str, container: str, code: int = 1, message: str = "") -> None:
        """A container of a shared pod ends, and its kubelet waits before it starts it again."""
        status = self.container_status(name, container)
        end = {"exitCode": code, "finishedAt": stamp(self.now), "message": message}
        status |= {"ready": False, "started": False, "lastState": {"terminated": end}}
        status["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}

    def restart(self, name: str, container: str) -> None:
        """The kubelet starts a container of a shared pod again."""
        status = self.container_status(name, container)
        status |= {"ready": True, "started": True, "restartCount": status["restartCount"] + 1}
        status["state"] = {"running": {"startedAt": stamp(self.now)}}

    def container_status(self, name: str, container: str) -> dict[str, Any]:
        statuses = self.pods[name]["status"]["containerStatuses"]
        status: dict[str, Any] = next(each for each in statuses if each["name"] == container)
        return status

    def end(self, name: str, code: int = 1, message: str = "", **status: Any) -> None:
        end = {"exitCode": code, "finishedAt": stamp(self.now), "message": message}
        self.pods[name]["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "role", "state": {"terminated": end}}],
            **status,
        }

    def runs(self, name: str) -> bool:
        return name in self.pods and self.pods[name]["status"]["phase"] == "Running"

    def over(self, name: str) -> bool:
        return self.pods[name]["status"]["phase"] in ("Failed", "Succeeded")

    def attempts(self) -> set[str]:
        """Of all trainer pods there are."""
        trainers = [p for p in self.pods.values() if p["metadata"]["labels"][ROLE] == "trainer"]
        return {pod["metadata"]["labels"][ATTEMPT] for pod in trainers}


def new_pod(role: Role, index: int, attempt: int, now: datetime.datetime, rank: int = 0) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name("job", role, index, rank),
            "uid": f"uid-{next(_uids)}",
            "labels": {ROLE: role.value, INDEX: str(index), ATTEMPT: str(attempt), RANK: str(rank)},
            "creationTimestamp": stamp(now),
        },
        "status": {"phase": "Pending"},
    }


def running(*overrides: str) -> World:
    """A job all of whose pods run, at step 3."""
    world = World(overrides)
    world.settle()
    world.trainer = TrainerStatus(
        activity="training", step=3, total_steps=4, reward_mean=0.123456, weight_version=3
    )
    world.step()
    return world


def names(todo: Plan) -> tuple[Sequence[str], Sequence[str]]:
    """Names of the pods that a plan creates, and of those that it deletes."""
    made = [pod_name("job", new.role, new.index, new.rank) for new in todo.create]
    return made, [d.name for d in todo.delete]


def reasons(world: World) -> Mapping[str, str]:
    assert world.status is not None
    return {c.type: c.reason for c in world.status.conditions}
