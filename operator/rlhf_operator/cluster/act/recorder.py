"""Events of jobs, as shown by `kubectl describe`; repeated ones are counted, not recorded again."""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...console.text import time_text
from ...kube.api import Api, Body
from ...kube.api_error import ApiError
from ..decide.describe import Event

logger = logging.getLogger(__name__)

_SAME_SECONDS = 600.0
"""Longest gap between two occurrences of one event series, seconds."""
_QUIET_SECONDS, _LONGEST_QUIET = 10.0, 600.0
"""First and longest interval between two writes of a series' count, seconds; it doubles at each write."""
_REMEMBERED = 2048
_DEADLINE_SECONDS = 2.0
_LONGEST = 1024  # the API server's limit

_Identity = tuple[str, str, str, str]


@dataclass
class _Recorded:
    name: str
    first: str
    count: int = 0
    last: float = 0.0
    written: float = float("-inf")
    quiet: float = 0.0
    """Seconds from `written` to the next time."""


class Recorder:
    """Records events, best effort: one that cannot be written is lost, and no reconcile fails because of it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._recorded: OrderedDict[_Identity, _Recorded] = OrderedDict()

    async def record(self, job: Mapping[str, Any], event: Event) -> None:
        logger.info("%s: %s", event.reason, event.message)
        if len(event.message) > _LONGEST:
            event = replace(event, message=event.message[: _LONGEST - 1] + "…")
        alike = event.alike or event.message
        recorded = self._counted(job, (job["metadata"]["uid"], event.type, event.reason, alike))
        if recorded.last - recorded.written < recorded.quiet:
            return
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                await self._api.apply(_event(job, event, recorded, self._now()))
        except (ApiError, TimeoutError) as error:
            logger.warning("could not record the event %s: %s", event.reason, error)
        else:
            recorded.written = recorded.last
            recorded.quiet = min(max(2 * recorded.quiet, _QUIET_SECONDS), _LONGEST_QUIET)

    def _counted(self, job: Mapping[str, Any], identity: _Identity) -> _Recorded:
        now, recorded = time.monotonic(), self._recorded.get(identity)
        if recorded is None or now - recorded.last > _SAME_SECONDS:
            name = f"{job['metadata']['name']}.{secrets.token_hex(8)}"
            recorded = self._recorded[identity] = _Recorded(name, self._now())
        recorded.count, recorded.last = recorded.count + 1, now
        self._recorded.move_to_end(identity)
        if len(self._recorded) > _REMEMBERED:
            self._recorded.popitem(last=False)
        return recorded

    def _now(self) -> str:
        return time_text(self._api.clock.now())


def _event(job: Mapping[str, Any], event: Event, recorded: _Recorded, now: str) -> Body:
    meta = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": recorded.name, "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "source": {"component": "rlhf-operator"},
        "firstTimestamp": recorded.first,
        "lastTimestamp": now,
        "count": recorded.count,
    }
