"""Leader election among operator replicas by a Lease, which the leader renews while it works.

The client library's leader election is not used: it waits up to five minutes for a reply of the API server, far beyond
the lease; it uses the wall clock; and it does not release the lease.
"""

import asyncio
import datetime
import logging
import secrets
import time
from typing import Any

from .api import Api
from .api_error import ApiError

logger = logging.getLogger(__name__)

NAME = "rlhf-operator"
LEASE_SECONDS = 10.0
"""Lease duration, seconds: no other replica takes the lease within this time of its last renewal."""
_LEAD_SECONDS = 9.0
"""Renew deadline, seconds: the leader stops after this time without a renewal, earlier than the lease ends, so that two
never work at once.
"""
_RENEW_SECONDS = 2.0
_POLL_SECONDS = 1.5
_RETRY_SECONDS = 0.5
_CALL_SECONDS = 4.0


class LeaseLost(RuntimeError):
    """This process is no longer the leader and must stop."""


class Lease:
    """The Lease as seen by this process; all times are of its own monotonic clock."""

    def __init__(self, api: Api, namespace: str, identity: str) -> None:
        self._api, self._namespace = api, namespace
        # Not the pod's name alone: a restarted process must not take itself for its predecessor.
        self.identity = f"{identity}_{secrets.token_hex(4)}"
        self._stored: dict[str, Any] | None = None
        self._changed = 0.0
        """Time at which the present content was first seen."""
        self._renewed = float("-inf")
        """Time at which our last successful renewal was sent."""

    def is_held(self) -> bool:
        """Fencing: true while this process holds the Lease."""
        return self._seconds_left() > 0

    @property
    def is_read(self) -> bool:
        """True once the Lease's holder has been read."""
        return self._stored is not None

    async def acquire(self) -> None:
        """Waits until the lease is free or expired, and takes it."""
        reported = ""
        while not await self._try("take", _CALL_SECONDS):
            if self._holder and self._holder != reported:
                reported = self._holder
                logger.info("standing by: %s is the leader", reported)
            left = self._runs_out() - time.monotonic()
            await asyncio.sleep(min(_POLL_SECONDS, left) if left > 0 else _POLL_SECONDS)

    async def keep(self) -> None:
        """Renews the lease until that fails; always ends with LeaseLost."""
        while (left := self._seconds_left()) > 0:
            renewed = await self._try("renew", min(_CALL_SECONDS, left))
            if not renewed and self._holder not in ("", self.identity):
                self._renewed = float("-inf")
                raise LeaseLost(f"{self._holder} took the lease {self._namespace}/{NAME}")
            await asyncio.sleep(_RENEW_SECONDS if renewed else _RETRY_SECONDS)
        raise LeaseLost(f"could not renew the lease {self._namespace}/{NAME} for {_LEAD_SECONDS:g} s")

    async def release(self) -> None:
        """Releases the lease, so that the next leader need not wait; tries for as long as it is held. Call it only
        after all work has stopped."""
        left, self._renewed = self._seconds_left(), float("-inf")
        if left <= 0:
            return
        try:
            async with asyncio.timeout(left):
                await self._read()  # an interrupted renewal may have been stored
                if self._stored is not None and self._holder == self.identity:
                    await self._api.replace(self._body(self._stored, holder=""))
        except (ApiError, TimeoutError) as error:
            logger.warning("could not give the lease back; it runs out in %g s: %s", LEASE_SECONDS, error)

    def _seconds_left(self) -> float:
        """Seconds until this process has to stop, unless it renews the lease."""
        return self._renewed + _LEAD_SECONDS - time.monotonic()

    @property
    def _holder(self) -> str:
        return (self._stored or {}).get("spec", {}).get("holderIdentity") or ""

    async def _try(self, what: str, seconds: float) -> bool:
        """Reads the lease if it is unknown, and writes our identity if allowed."""
        sent = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                if self._stored is None or self._holder != self.identity:
                    await self._read()
                if self._stored is None:
                    self._see(await self._api.create(self._body(None, holder=self.identity)))
                elif self._free():
                    sent = time.monotonic()
                    self._see(await self._api.replace(self._body(self._stored, holder=self.identity)))
                else:
                    return False
        except (ApiError, TimeoutError) as error:
            if isinstance(error, ApiError) and error.status == 409:
                self._stored = None  # a conflict: somebody wrote it after we read it
            else:
                problem = error if isinstance(error, ApiError) else f"no answer within {seconds:.1f} s"
                logger.warning("could not %s the lease %s/%s: %s", what, self._namespace, NAME, problem)
            return False
        self._renewed = sent
        return True

    def _free(self) -> bool:
        return self._holder in ("", self.identity) or time.monotonic() >= self._runs_out()

    def _runs_out(self) -> float:
        """Expiry of the other holder's lease, as observed."""
        spec = (self._stored or {}).get("spec", {})
        return self._changed + (spec.get("leaseDurationSeconds") or LEASE_SECONDS)

    async def _read(self) -> None:
        try:
            self._see(await self._api.get("Lease", self._namespace, NAME))
        except ApiError as error:
            if error.status != 404:
                raise
            self._stored = None

    def _see(self, body: dict[str, Any]) -> None:
        if (
            self._stored is None
            or body["metadata"]["resourceVersion"] != self._stored["metadata"]["resourceVersion"]
        ):
            self._changed = time.monotonic()
        self._stored = body

    def _body(self, stored: dict[str, Any] | None, holder: str) -> dict[str, Any]:
        # Always with six digits: the API server refuses a time without a fraction.
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((stored or {}).get("spec") or {})
        if holder and holder != spec.get("holderIdentity"):
            spec |= {"acquireTime": now, "leaseTransitions": spec.get("leaseTransitions", -1) + 1}
        spec |= {"holderIdentity": holder, "renewTime": now, "leaseDurationSeconds": int(LEASE_SECONDS)}
        metadata = stored["metadata"] if stored else {"name": NAME, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
