"""`rlhf logs`."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Literal

from rlhf_api.contract.status import FailureStatus, JobStatus
from rlhf_api.host.tasks import end_all
from rlhf_api.roles import Role

from ..console.exits import Failure
from ..console.text import one_line
from ..job.names import INDEX, JOB, ROLE
from ..kube.api_error import ApiError
from .client import Session, passing
from .format import state
from .jobs import POLL_SECONDS, find, is_finished, poll_job, status_of
from .log_reader import Reading
from .log_source import LogSource, has_begun, has_ended, is_replaced, log_sources
from .terminal import put

_COLOURS = (36, 33, 32, 35, 34, 31)
_DRAIN_SECONDS = 15.0
"""Longest wait for the last lines after the job is over, seconds."""

Emit = Callable[[str], None]


async def logs(session: Session, options: argparse.Namespace) -> int:
    body = await find(session, options.name)
    if options.follow:
        await _follow(session, options)
        return 0
    sources = [] if options.previous else await _sources(session, options)
    for source in sources:
        await _Log(session, source, options.tail).read(follow=False)
    if sources:
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
    """Follows every process from start to end, replacements included, until the job is over."""
    reading: dict[LogSource, asyncio.Task[None]] = {}
    ended: float | None = None
    reported, tail = "", options.tail
    try:
        async for body in poll_job(session, options.name, _note):
            for source in await _sources(session, options, patient=True):
                if source not in reading:
                    reading[source] = asyncio.create_task(_Log(session, source, tail).follow())
            tail = None  # all output of a process that starts later is new
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
    """The log of one start of a process."""

    def __init__(self, session: Session, source: LogSource, tail: int | None) -> None:
        self._session, self._source, self._tail = session, source, tail
        self._emit = _emitter(source.process)
        self._reading = Reading()

    async def follow(self) -> None:
        """Follows the log until the process ends."""
        while True:
            # The state is read first: a log read after the end is complete.
            state = await self._state()
            if state == "gone":
                return  # another start may have its name by now, and its log is another one
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
        pod, container = self._source.pod, self._source.container
        async for piece in self._session.log(pod, container, follow=follow, tail=tail, since=since):
            for text in self._reading.take(piece):
                self._emit(text)
        if not follow:
            for text in self._reading.end():
                self._emit(text)

    async def _state(self) -> Literal["runs", "ended", "gone"]:
        """State of the process; `runs` also if the API server does not reply."""
        try:
            pod = await self._session.get("Pod", self._session.namespace, self._source.pod)
        except ApiError as error:
            if error.status != 404 and not passing(error):
                raise
            return "gone" if error.status == 404 else "runs"
        if is_replaced(pod, self._source):
            return "gone"
        return "ended" if has_ended(pod, self._source) else "runs"


async def _sources(
    session: Session, options: argparse.Namespace, *, patient: bool = False
) -> list[LogSource]:
    """The selected processes with a log, in order. `patient`: empty while the API server is unavailable."""
    labels = f"{JOB}={options.name},{ROLE},{INDEX}"
    try:
        pods = [pod async for pod in session.list("Pod", session.namespace, labels=labels)]
    except ApiError as error:
        if not (patient and passing(error)):
            raise
        return []
    begun = [source for pod in pods for source in log_sources(pod) if has_begun(pod, source)]
    selected = [
        source
        for source in begun
        if options.role in (source.role, "all") and options.index in (source.index, None)
    ]
    return sorted(selected, key=lambda source: source.place)


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
