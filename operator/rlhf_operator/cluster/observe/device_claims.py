"""Reads the devices that Kubernetes has allocated to pods' ResourceClaims: the pods name their claims alone."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...job.snapshot import Job, Pod
from ...kube.api import Api, Key
from ...kube.api_error import ApiError
from ...kube.calls import run_all

logger = logging.getLogger(__name__)

_AT_ONCE = 16
"""Claims that are read for one job in one look."""

Devices = tuple[tuple[str, int], ...]
"""Numbers of devices by the names of their drivers."""


class DeviceClaims:
    """Keeps what it has read: an allocation stays as it is while a pod has it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[Key, dict[str, Devices]] = {}

    async def with_claimed_devices(self, key: Key, job: Job, pods: Sequence[Pod]) -> list[Pod]:
        """The pods, each with the devices of its claims beside its others; those of a claim that several pods share are
        the first one's."""
        owner = {
            claim: pod.uid
            for pod in sorted(pods, key=lambda pod: pod.name, reverse=True)
            if pod.node and not pod.over
            for claim in pod.claims
        }
        if not owner:
            self.forget(key)
            return [*pods]
        known = {claim: devices for claim, devices in self._known.get(key, {}).items() if claim in owner}
        self._known[key] = known
        unread = [claim for claim in sorted(owner) if claim not in known][:_AT_ONCE]
        for claim, devices in zip(
            unread, await run_all(self._read(job, each) for each in unread), strict=True
        ):
            if devices is not None:
                known[claim] = devices
        mine = {
            pod.uid: [
                device
                for claim in pod.claims
                if owner.get(claim) == pod.uid
                for device in known.get(claim, ())
            ]
            for pod in pods
        }
        return [replace(pod, devices=(*pod.devices, *mine[pod.uid])) for pod in pods]

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)

    async def _read(self, job: Job, claim: str) -> Devices | None:
        """None to be asked again: it does not matter enough to stop a look."""
        try:
            return allocated_devices(await self._api.get("ResourceClaim", job.namespace, claim))
        except ApiError as error:
            logger.warning("devices of ResourceClaim %s are not counted: %s", claim, error)
            return () if error.status in (403, 404) else None


def allocated_devices(claim: Mapping[str, Any]) -> Devices | None:
    """Devices of a claim's allocation, without those that it only observes; None before there is one."""
    allocation = (claim.get("status") or {}).get("allocation")
    if allocation is None:
        return None
    results = (allocation.get("devices") or {}).get("results") or ()
    drivers = Counter(str(each.get("driver")) for each in results if not each.get("adminAccess"))
    return tuple(sorted(drivers.items()))
