"""Reads the events of pods that have a node and no container yet: only there a kubelet says what it lacks, such as a
Secret that a volume names; the pod's status says `ContainerCreating`."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from ...job.baseline import as_object
from ...job.snapshot import Job, Pod
from ...kube.api import Api, Body, Key
from ...kube.api_error import ApiError

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0
"""Age from which a pod's events are read, seconds."""
_PAUSE_SECONDS = 10.0
"""Seconds between two reads of one job; each is of one pod, in turn."""
_MOST = 500
"""Events read of a pod. A kubelet writes some 35 in the hour that a server keeps them; anybody may write more."""
_MESSAGE = 1024
"""Characters kept of an event's message."""
_READ = ("type", "reason", "message", "lastTimestamp", "eventTime")


@dataclass
class _Known:
    last: float = float("-inf")
    """Time of the last read, on the monotonic clock."""
    read_at: dict[str, float] = field(default_factory=dict)
    """The same by the pod's uid."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Reason that the last read found, by uid."""

    def keep(self, uids: set[str]) -> None:
        """Forgets all other pods."""
        self.read_at = {uid: at for uid, at in self.read_at.items() if uid in uids}
        self.reasons = {uid: reason for uid, reason in self.reasons.items() if uid in uids}


class PodEvents:
    """Keeps what it has read while the pods wait."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[Key, _Known] = {}

    async def with_event_reasons(self, key: Key, job: Job, pods: Sequence[Pod]) -> list[Pod]:
        """The pods, each that its kubelet cannot start with the reason."""
        oldest = self._api.clock.time() - _PATIENCE_SECONDS
        waiting = [
            pod for pod in pods if pod.unstarted and pod.started <= oldest and pod.deletion_deadline is None
        ]
        if not waiting:
            self.forget(key)
            return [*pods]
        known = self._known.setdefault(key, _Known())
        known.keep({pod.uid for pod in waiting})
        if time.monotonic() >= known.last + _PAUSE_SECONDS:
            pod = min(waiting, key=lambda pod: known.read_at.get(pod.uid, float("-inf")))
            known.last = known.read_at[pod.uid] = time.monotonic()
            await self._read(job, pod, known)
        reasons = {pod.uid: known.reasons.get(pod.uid) for pod in waiting}
        return [replace(pod, waiting_reason=pod.waiting_reason or reasons.get(pod.uid)) for pod in pods]

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    async def _read(self, job: Job, pod: Pod, known: _Known) -> None:
        selector = f"involvedObject.uid={pod.object_uid}"
        newest: list[Mapping[str, Any]] = []
        events = self._api.list("Event", job.namespace, fields=selector, keep=_trim)
        count = 0
        try:
            async with aclosing(events):
                async for event in events:
                    newest, count = [max([*newest, event], key=_order)], count + 1
                    if count == _MOST:
                        break
        except ApiError as error:
            logger.warning("could not read the events of %s: %s", pod.name, error)
            return
        known.reasons.pop(pod.uid, None)
        if (blocking := blocking_event(newest)) is not None:
            known.reasons[pod.uid] = f"{blocking} (namespace {job.namespace})"


def blocking_event(events: Sequence[Mapping[str, Any]]) -> str | None:
    """Reason and message of the newest event, if it is a warning: a kubelet repeats it until it is over, and then goes
    on with events such as `Pulling`."""
    newest = max(events, key=_order, default=None)
    if newest is None or newest.get("type") != "Warning":
        return None
    return f"{newest.get('reason') or 'Warning'}: {newest.get('message') or ''}"


def _trim(event: Body) -> Body:
    """The parts that are read, all bounded: anybody who may write events chooses their size."""
    trimmed: Body = {name: str(event[name])[:_MESSAGE] for name in _READ if event.get(name)}
    if last_observed := as_object(event.get("series")).get("lastObservedTime"):
        trimmed["series"] = {"lastObservedTime": str(last_observed)}
    return trimmed


def _order(event: Mapping[str, Any]) -> tuple[str, bool]:
    return _time(event), event.get("type") == "Normal"


def _time(event: Mapping[str, Any]) -> str:
    """RFC 3339 in UTC to the second, which sorts as text."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return next((at[:19] for at in times if at), "")


class DeletionWatch:
    """Keeps when each deleted pod was first observed so, by this process's own clock; another process begins anew. The
    deadlines that API servers write are of the clocks of several machines, and a pod that is given up too early may
    still train beside its successor."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: dict[Key, dict[str, float]] = {}

    def observed(self, key: Key, pods: Sequence[Pod], now: float) -> list[Pod]:
        """The pods, none with a deadline before its whole grace period was observed here. `now`: the time that their
        deadlines are compared with."""
        going, known, clock = [p for p in pods if p.deletion_deadline is not None], self._first, self._clock()
        first = {pod.uid: known.get(key, {}).get(pod.uid, clock) for pod in going}
        known[key] = first
        if not first:
            del known[key]
        return [
            replace(
                pod, deletion_deadline=max(pod.deletion_deadline, now - clock + first[pod.uid] + pod.grace)
            )
            if pod.deletion_deadline is not None
            else pod
            for pod in pods
        ]

    def forget(self, key: Key) -> None:
        self._first.pop(key, None)
