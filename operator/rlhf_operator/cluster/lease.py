"""Of several operators one leads: the holder of a Lease, which it renews while it works.

The client library's leader election is not used: it waits up to five minutes for an answer of the API server, long
past the end of the lease; goes by the wall clock; and does not give the lease back.
"""

import asyncio
import datetime
import logging
import secrets
import time
from typing import Any

from .api import Api, ApiError

logger = logging.getLogger(__name__)

NAME = "rlhf-operator"
LEASE_SECONDS = 10.0
"""Nobody takes the lease within this time of its last renewal."""
_LEAD_SECONDS = 9.0
"""Without a renewal its holder gives up after this time: earlier, so that two never work at once."""
_RENEW_SECONDS = 2.0
_POLL_SECONDS = 1.5
_RETRY_SECONDS = 0.5
_CALL_SECONDS = 4.0


class LeaseLost(RuntimeError):
    """This process must not work any more."""


class Lease:
    """The lease as this process sees it; all its times are this process's own monotonic clock."""

    def __init__(self, api: Api, namespace: str, identity: str) -> None:
        self._api, self._namespace = api, namespace
        # Never the name alone: a process that was started again must not take itself for the one before.
        self.identity = f"{identity}_{secrets.token_hex(4)}"
        self._stored: dict[str, Any] | None = None
        self._changed = 0.0
        """Time at which we first saw what is stored now."""
        self._renewed = float("-inf")
        """Time at which our last successful renewal was sent."""

    def held(self) -> bool:
        """Fencing: true while this process holds the Lease."""
        return time.monotonic() < self._renewed + _LEAD_SECONDS

    @property
    def known(self) -> bool:
        """The Lease's holder has been seen."""
        return self._stored is not None

    async def acquire(self) -> None:
        """Wait until nobody else holds the lease, and take it."""
        told = ""
        while not await self._try("take", _CALL_SECONDS):
            if self._holder and self._holder != told:
                told = self._holder
                logger.info("stands by: %s leads", told)
            left = self._runs_out() - time.monotonic()
            await asyncio.sleep(min(_POLL_SECONDS, left) if left > 0 else _POLL_SECONDS)

    async def keep(self) -> None:
        """Renew the lease for as long as that works; always ends with LeaseLost."""
        while (left := self._renewed + _LEAD_SECONDS - time.monotonic()) > 0:
            renewed = await self._try("renew", min(_CALL_SECONDS, left))
            if not renewed and self._holder not in ("", self.identity):
                self._renewed = float("-inf")
                raise LeaseLost(f"{self._holder} took the lease {self._namespace}/{NAME}")
            await asyncio.sleep(_RENEW_SECONDS if renewed else _RETRY_SECONDS)
        raise LeaseLost(f"could not renew the lease {self._namespace}/{NAME} for {_LEAD_SECONDS:g} s")

    async def release(self) -> None:
        """Let the next one take over at once. This process must have stopped working before."""
        held, self._renewed = self.held(), float("-inf")
        if not held:
            return
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._read()  # a renewal that was cut short may have been stored
                if self._stored is not None and self._holder == self.identity:
                    await self._api.replace(self._body(self._stored, holder=""))
        except (ApiError, TimeoutError) as error:
            logger.warning("could not give the lease back; it runs out in %g s: %s", LEASE_SECONDS, error)

    @property
    def _holder(self) -> str:
        return (self._stored or {}).get("spec", {}).get("holderIdentity") or ""

    async def _try(self, what: str, seconds: float) -> bool:
        """Read the lease where we do not know it, and write our name into it where that is allowed."""
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
                self._stored = None  # somebody wrote it after we read it: read it again
            else:
                why = error if isinstance(error, ApiError) else f"no answer within {seconds:.1f} s"
                logger.warning("could not %s the lease %s/%s: %s", what, self._namespace, NAME, why)
            return False
        self._renewed = sent
        return True

    def _free(self) -> bool:
        return self._holder in ("", self.identity) or time.monotonic() >= self._runs_out()

    def _runs_out(self) -> float:
        """Time at which the other holder's lease runs out, as far as we can see."""
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
