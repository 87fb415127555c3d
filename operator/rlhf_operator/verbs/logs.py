"""`rlhf logs`."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Literal

from rlhf_api.contract.run import process_name
from rlhf_api.contract.status import FailureStatus, JobStatus
from rlhf_api.host.tasks import end_all
from rlhf_api.roles import Role

from ..console.exits import Failure
from ..console.text import one_line
from ..job.names import INDEX, JOB, RANK, ROLE
from ..kube.api import Body
from ..kube.api_error import ApiError
from .api_errors import passing
from .client import Session
from .format import state
from .jobs import POLL_SECONDS, find, is_finished, poll_job, status_of
from .log_reader import Reading
from .terminal import put

CONTAINER = "role"
_COLOURS = (36, 33, 32, 35, 34, 31)
_DRAIN_SECONDS = 15.0
"""Longest wait for the last lines after the job is over, seconds."""

Emit = Callable[[str], None]


async def logs(session: Session, options: argparse.Namespace) -> int:
    body = await find(session, options.name)
    if options.follow:
        await _follow(session, options)
        return 0
    pods = [] if options.previous else [pod for pod in await _pods(session, options) if _begun(pod)]
    for pod in pods:
        await _Log(session, pod, options.tail).read(follow=False)
    if pods:
        return 0
    status = status_of(body)
    deleted_hint = (
        f"logs of pods that are gone are where the cluster keeps them, by the label {JOB}={options.name}"
    )
    failures = _last_failures(status, options)
    if not failures:
        lacks = "no failure is kept" if options.previous else _none(options, state(status))
        raise Failure(f"{lacks}; {deleted_hint}")
    for failure in failures:
        emit = _emitter(failure.process)
        lines = failure.log.splitlines()
        for line in lines if options.tail is None else lines[max(len(lines) - options.tail, 0) :]:
            emit(one_line(line))
        _note(f"{failure.process} failed at {failure.time}, and these are its last lines; {deleted_hint}")
    return 0


def _last_failures(status: JobStatus | None, options: argparse.Namespace) -> list[FailureStatus]:
    """The selected roles' last failures."""
    roles = status.roles.items() if status else ()
    failures = [
        each.last_failure for role, each in roles if options.role in (role, "all") and each.last_failure
    ]
    return [each for each in failures if options.index is None or _place(each.process)[1] == options.index]


async def _follow(session: Session, options: argparse.Namespace) -> None:
    """Follows every pod from start to end, replacements included, until the job is over."""
    reading: dict[str, asyncio.Task[None]] = {}
    ended: float | None = None
    reported, tail = "", options.tail
    try:
        async for body in poll_job(session, options.name, _note):
            for pod in await _pods(session, options, patient=True):
                uid = pod["metadata"]["uid"]
                if uid not in reading and _begun(pod):
                    reading[uid] = asyncio.create_task(_Log(session, pod, tail).follow())
            tail = None  # all output of a pod that starts later is new
            for task in reading.values():
                if task.done():
                    task.result()  # raises the task's error
            status = status_of(body)
            running = any(not task.done() for task in reading.values())
            if is_finished(status):
                ended = ended or time.monotonic()
                if not running or time.monotonic() > ended + _DRAIN_SECONDS:
                    return
            elif not running and state(status) != reported:
                reported = state(status)
                _note(f"{_none(options, reported)}; waiting for one")
    finally:
        await end_all(reading.values())


class _Log:
    """The log of one pod."""

    def __init__(self, session: Session, pod: Body, tail: int | None) -> None:
        self._session, self._tail = session, tail
        self._name, self._uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._emit = _emitter(process_name(Role(_label(pod, ROLE)), int(_label(pod, INDEX)), _rank(pod)))
        self._reading = Reading()

    async def follow(self) -> None:
        """Follows the log until the pod ends."""
        while True:
            # The state is read first: a log read after the pod's end is complete.
            state = await self._state()
            if state == "gone":
                return  # another pod may have its name by now, and its log is another one
            ended = state == "ended"
            try:
                await self.read(follow=not ended)
            except ApiError as error:
                if error.status == 404:
                    return
                if not passing(error):
                    raise
            else:
                if ended:
                    return
            await asyncio.sleep(POLL_SECONDS)

    async def read(self, *, follow: bool) -> None:
        """Reads the log from where the last read ended."""
        since = self._reading.connect()
        tail = self._tail if since is None else None
        async for piece in self._session.log(self._name, CONTAINER, follow=follow, tail=tail, since=since):
            for text in self._reading.take(piece):
                self._emit(text)
        if not follow:
            for text in self._reading.end():
                self._emit(text)

    async def _state(self) -> Literal["runs", "ended", "gone"]:
        """State of the pod; `runs` also if the API server does not reply."""
        try:
            pod = await self._session.get("Pod", self._session.namespace, self._name)
        except ApiError as error:
            if error.status != 404 and not passing(error):
                raise
            return "gone" if error.status == 404 else "runs"
        if pod["metadata"]["uid"] != self._uid:
            return "gone"
        return "ended" if "terminated" in _container_state(pod) else "runs"


async def _pods(session: Session, options: argparse.Namespace, *, patient: bool = False) -> list[Body]:
    """The selected pods, in order. `patient`: empty while the API server is unavailable."""
    role = f"{ROLE}={options.role}" if options.role != "all" else ROLE
    index = f"{INDEX}={options.index}" if options.index is not None else INDEX
    labels = f"{JOB}={options.name},{role},{index}"
    try:
        pods = [pod async for pod in session.list("Pod", session.namespace, labels=labels)]
    except ApiError as error:
        if not (patient and passing(error)):
            raise
        return []
    roles = [role.value for role in Role]
    return sorted(pods, key=lambda pod: (roles.index(_label(pod, ROLE)), int(_label(pod, INDEX)), _rank(pod)))


def _begun(pod: Body) -> bool:
    """True if its container has a log."""
    return "running" in _container_state(pod) or "terminated" in _container_state(pod)


def _container_state(pod: Body) -> Body:
    containers: list[Body] = pod.get("status", {}).get("containerStatuses") or []
    return next((c.get("state", {}) for c in containers if c["name"] == CONTAINER), {})


def _label(pod: Body, name: str) -> str:
    return str(pod["metadata"]["labels"][name])


def _rank(pod: Body) -> int:
    return int(pod["metadata"]["labels"].get(RANK, "0"))


def _emitter(process: str) -> Emit:
    prefix = f"{process} | "
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        role, index = _place(process)
        colour = _COLOURS[(list(Role).index(role) + index) % len(_COLOURS)]
        prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
    return lambda text: put(prefix + text, sys.stdout)


def _place(process: str) -> tuple[Role, int]:
    """Role and index of a process's name."""
    role, index, *_ = process.split("-")
    return Role(role), int(index)


def _none(options: argparse.Namespace, standing: str) -> str:
    role = "" if options.role == "all" else f"{options.role} "
    index = "" if options.index is None else f" of index {options.index}"
    return f"{options.name} has no {role}pod{index} with a log now ({standing})"


def _note(text: str) -> None:
    put(text, sys.stderr)
