"""Reads the events of pods that have a node and no container yet: only there a kubelet says what it lacks, such as a
Secret that a volume names; the pod's status says `ContainerCreating`."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .api import Api, Key
from .api_error import ApiError
from .snapshot import Job, Pod

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 20.0
"""Age from which a pod's events are read, seconds."""
_PAUSE_SECONDS = 10.0
"""Seconds between two reads of one job; each is of one pod, in turn."""


@dataclass
class _Known:
    asked: dict[str, float] = field(default_factory=dict)
    """Time of the last read by the pod's uid, on the monotonic clock."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Reason that the last read found, by uid."""


class PodEvents:
    """Keeps what it has read while the pods wait."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[Key, _Known] = {}

    async def told(self, key: Key, job: Job, pods: Sequence[Pod]) -> list[Pod]:
        """The pods, each that its kubelet cannot start with the reason."""
        oldest = self._api.clock.time() - _PATIENCE_SECONDS
        waiting = [
            pod for pod in pods if pod.unstarted and pod.started <= oldest and pod.deletion_deadline is None
        ]
        if not waiting:
            self.forget(key)
            return [*pods]
        known = self._known.setdefault(key, _Known())
        if time.monotonic() >= max(known.asked.values(), default=float("-inf")) + _PAUSE_SECONDS:
            pod = min(waiting, key=lambda pod: known.asked.get(pod.uid, float("-inf")))
            known.asked[pod.uid] = time.monotonic()
            await self._read(job, pod, known)
        reasons = {pod.uid: known.reasons.get(pod.uid) for pod in waiting}
        return [replace(pod, waiting_reason=pod.waiting_reason or reasons.get(pod.uid)) for pod in pods]

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    async def _read(self, job: Job, pod: Pod, known: _Known) -> None:
        selector = f"involvedObject.uid={pod.uid}"
        try:
            events = [event async for event in self._api.list("Event", job.namespace, fields=selector)]
        except ApiError as error:
            logger.warning("could not read the events of %s: %s", pod.name, error)
            return
        known.reasons.pop(pod.uid, None)
        if (said := hindrance(events)) is not None:
            known.reasons[pod.uid] = f"{said} (namespace {job.namespace})"


def hindrance(events: Sequence[Mapping[str, Any]]) -> str | None:
    """Reason and message of the newest event, if it is a warning: a kubelet repeats it until it is over, and then goes
    on with events such as `Pulling`."""
    newest = max(events, key=lambda event: (_time(event), event.get("type") == "Normal"), default=None)
    if newest is None or newest.get("type") != "Warning":
        return None
    return f"{newest.get('reason') or 'Warning'}: {newest.get('message') or ''}"


def _time(event: Mapping[str, Any]) -> str:
    """RFC 3339 in UTC to the second, which sorts as text."""
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return next((at[:19] for at in times if at), "")
