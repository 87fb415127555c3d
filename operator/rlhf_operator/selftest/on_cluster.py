"""Selftest trial on a cluster: one RLHFJob of its own, whose pods are deleted one after the other."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from rlhf_api.contract.status import JobStatus
from rlhf_api.job import RLHFJob
from rlhf_api.roles import Role

from ..cluster.objects.pod_volumes import WORKSPACE
from ..console.exits import Failure
from ..console.text import one_line
from ..job.names import INDEX, JOB
from ..job.pod_status import OVER
from ..job.shared_pod import processes_in
from ..kube.api import Body
from ..kube.api_error import ApiError
from ..verbs.client import Session, passing
from ..verbs.format import state
from ..verbs.jobs import POLL_SECONDS, is_finished, poll_job, status_of
from ..verbs.log_reader import Reading
from ..verbs.submit import as_written
from .derived import Overrides
from .left import RunResults, from_lines
from .reader_pod import CONTAINER, keeps_files, reader_pod
from .watch import Stop, Watch

_SUSPEND_SECONDS = 420.0
"""Deadline of a suspend, seconds: the trainer's grace period plus a minute for the kubelet."""
_READER_SECONDS = 300.0
_WARNINGS = 3

Say = Callable[[str], None]


class OnCluster:
    """Runs halves as a job of this name in the session's namespace (`trial.Trial`); `derive` builds it with overrides.
    Every method may raise ApiError and Failure."""

    def __init__(self, session: Session, derive: Callable[[Overrides], RLHFJob], name: str, say: Say) -> None:
        self._session, self._derive, self.name, self._say = session, derive, name, say
        self._trainer: Body | None = None
        """Pod of the first trainer, once it exists; template of the reader pod."""
        self._wrote = False
        """True once a trainer's container was started, so that there may be files. Before, its image may not exist, and
        the reader pod has the same one."""
        self._pods: list[Body] = []
        self._rests = False
        """True if the job is suspended or over, so that its workspace is not written to."""

    async def half(self, overrides: Overrides, watch: Watch) -> str:
        body = as_written(self._derive(overrides), self._session.namespace)
        made = await self._session.submit(body, force=True)
        generation, self._rests = made["metadata"]["generation"], False
        shown, most, killed, stopped = "", 0, ("", ""), float("inf")
        async for job_body in poll_job(self._session, self.name, self._say):
            status = status_of(job_body)
            if status is not None and status.observed_generation < generation:
                status = None  # of the half before
            await self._observe()
            if status is not None and status.step > most:  # a resumed trainer first reports an earlier step
                most = status.step
                watch.step(most)
            if (line := _progress_line(status)) != shown:
                self._say(line)
                shown = line
            if is_finished(status) or (watch.stopped and status is not None and status.phase == "Suspended"):
                self._rests = True
                break
            if time.monotonic() > stopped:
                watch.failed = watch.failed or f"not suspended within {_SUSPEND_SECONDS:.0f} s"
                return f"{watch.failed} ({await self._standing(status, job_body)})"
            decided = watch.decide(status, again=self._again(*killed))
            if isinstance(decided, Role):
                killed = self._victim(decided)
                self._say(f"deleting the pod {killed[0]} after step {most}, without grace")
            elif decided is not None:
                stopped = time.monotonic() + _SUSPEND_SECONDS
                await self._stop(decided, watch, status, job_body)
            if watch.waits_for is not None:
                await self._kill(*killed)
        return self._outcome(watch, status)

    async def read_results(self, models: Sequence[str]) -> RunResults:
        if self._trainer is None or not self._rests:
            return RunResults()
        reader = ["python3", "-P", "-m", "rlhf_operator.selftest.left", self._folder, *models]
        try:
            return from_lines(await self._in_pod(self._trainer, reader))
        except ValueError as error:
            raise Failure(f"what {self.name} has left cannot be read: {error}") from None

    async def remove(self) -> None:
        """Deletes the job, and its files once its pods are gone."""
        namespace = self._session.namespace
        await self._session.delete("RLHFJob", namespace, self.name)
        if self._trainer is None:
            return
        deadline = time.monotonic() + _SUSPEND_SECONDS
        while await self._list():
            if time.monotonic() > deadline:
                raise Failure(f"pods of {self.name} are still there after {_SUSPEND_SECONDS:.0f} s")
            await asyncio.sleep(POLL_SECONDS)
        if self._wrote and keeps_files(self._trainer):
            remove = ["python3", "-P", "-m", "rlhf_operator.selftest.left", "--remove", self._folder]
            await self._in_pod(self._trainer, remove)

    @property
    def _folder(self) -> str:
        return f"{WORKSPACE}/runs/{self.name}"

    async def _observe(self) -> None:
        """Updates the job's pods; keeps the last ones while the API server is unavailable."""
        try:
            self._pods = await self._list()
        except ApiError as error:
            if not passing(error):
                raise
        if self._trainer is None and (trainer := self._first(Role.TRAINER)) is not None:
            if not keeps_files(trainer):
                raise Failure(
                    "the job's pods have no workspace that outlives them, and the selftest reads figures and "
                    "checkpoints there afterwards: name a claim in spec.workspace.claim"
                )
            self._trainer = trainer

    async def _list(self) -> list[Body]:
        """The job's pods."""
        listing = self._session.list("Pod", self._session.namespace, labels=f"{JOB}={self.name}")
        pods = [pod async for pod in listing]
        self._wrote = self._wrote or any(_began(pod) for pod in pods if _of(Role.TRAINER, pod))
        return pods

    def _first(self, role: Role) -> Body | None:
        of_role = [pod for pod in self._pods if _of(role, pod)]
        return min(of_role, key=lambda pod: int(pod["metadata"]["labels"][INDEX]), default=None)

    def _victim(self, role: Role) -> tuple[str, str]:
        """Name and uid of the role's first pod."""
        pod = self._first(role)
        if pod is None:  # since all were ready: it has just ended by itself, which counts as a kill
            return "", ""
        return pod["metadata"]["name"], pod["metadata"]["uid"]

    async def _kill(self, name: str, uid: str) -> None:
        """Deletes the victim's pod, again at each call while it exists: an earlier call may have failed."""
        if any(pod["metadata"]["uid"] == uid for pod in self._pods):
            try:
                await self._session.delete("Pod", self._session.namespace, name, uid=uid, grace=0)
            except ApiError as error:
                if not passing(error):
                    raise

    def _again(self, name: str, uid: str) -> bool:
        """True if another pod of this name is ready."""
        pod = next((pod for pod in self._pods if pod["metadata"]["name"] == name), None)
        return pod is not None and pod["metadata"]["uid"] != uid and _ready(pod)

    async def _stop(self, stop: Stop, watch: Watch, status: JobStatus | None, job_body: Body) -> None:
        if watch.failed:
            watch.failed += f" ({await self._standing(status, job_body)})"
        self._say(stop.why)
        await self._session.patch_job(self.name, {"spec": {"suspend": True}})

    def _outcome(self, watch: Watch, status: JobStatus | None) -> str:
        if watch.failed:
            return watch.failed
        phase = status.phase if status is not None else ""
        return "" if phase == ("Suspended" if watch.stopped else "Succeeded") else state(status)

    async def _standing(self, status: JobStatus | None, job: Body) -> str:
        """The job's state, and the last warnings about it and its unready pods."""
        words = [state(status)]
        for body in (job, *(pod for pod in self._pods if not _ready(pod))):
            with suppress(ApiError):
                warnings = [
                    e for e in await self._session.events(body["metadata"]["uid"]) if e["type"] == "Warning"
                ]
                warnings.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
                name = body["metadata"]["name"]
                words += [f"{name}: {e['reason']}: {one_line(e['message'])}" for e in warnings[-_WARNINGS:]]
        return "; ".join(dict.fromkeys(words))

    async def _in_pod(self, trainer: Body, command: list[str]) -> list[str]:
        """Output lines of a command in a pod of its own, which is deleted afterwards. Raises Failure."""
        namespace, name = self._session.namespace, f"{self.name}-reader"
        await self._session.create(reader_pod(trainer, name, command))
        try:
            deadline = time.monotonic() + _READER_SECONDS
            while (pod := await self._session.get("Pod", namespace, name))["status"].get("phase") not in OVER:
                if time.monotonic() > deadline:
                    raise Failure(f"pod {name} has not ended after {_READER_SECONDS:.0f} s: {pod['status']}")
                await asyncio.sleep(POLL_SECONDS)
            reading, lines = Reading(), list[str]()
            reading.connect()
            log = self._session.log(name, CONTAINER, follow=False, tail=None, since=None)
            async for piece in log:
                lines += reading.take(piece)
            lines += reading.end()
            if pod["status"]["phase"] == "Failed":
                problem = lines[-1] if lines else pod["status"].get("message", "")
                raise Failure(
                    f"pod {name}, which reads what {self.name} has left, has failed: {one_line(problem)}"
                )
            return lines
        finally:
            await self._session.delete("Pod", namespace, name, grace=0)


def _of(role: Role, pod: Body) -> bool:
    return any(each is role for _, each, _ in processes_in(pod))


def _began(pod: Body) -> bool:
    return str(pod["status"].get("phase", "Pending")) != "Pending"


def _ready(pod: Body) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _progress_line(status: JobStatus | None) -> str:
    """A line of progress, unchanged until a step is done or something else happens."""
    if status is None or not (status.phase == "Running" and status.step):
        return state(status)
    reward = "" if status.reward is None else f", reward {status.reward:.4g}"
    return f"Running: step {status.step}{reward}"
