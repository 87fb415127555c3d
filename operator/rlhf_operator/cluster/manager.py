"""Runs one operator process: standby, leader election, workers, shutdown. An unrecoverable error exits; Kubernetes
restarts the pod."""

import asyncio
import logging
import random
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from rlhf_api.host.event_loop import EventLoop

from ..job.pod_status import OVER
from ..kube.api import Api, Body, Key
from ..kube.api_error import ApiError
from ..kube.lease import Lease, LeaseLost
from .config.scope import Scope
from .config.settings import Settings
from .serve.logs import about
from .telemetry import Outcome, Telemetry
from .watching import resync
from .watching.cache import Cache
from .watching.queue import Queue
from .watching.watch import kinds_served, watch

logger = logging.getLogger(__name__)

WORKERS = 16
_RESYNC_SECONDS = 120.0
_FIRST_RESYNC_SECONDS = 10.0  # picks up deletions between the first listing and the watches
_BATCH_SECONDS = 1.0  # pods of one job come, get their nodes and become ready together
_RECONCILE_SECONDS = 60.0
_STUCK_SECONDS = 2 * _RECONCILE_SECONDS
_STOP_SECONDS = 10.0
_RETRY_SECONDS = 5.0
_LONGEST_HOLD = 300.0

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Returns the seconds until the next reconcile; raises if it failed."""


class Process:
    """Calls `reconcile` for every job with a change, never concurrently for the same job."""

    def __init__(
        self, settings: Settings, api: Api, cache: Cache, telemetry: Telemetry, reconcile: Reconcile
    ) -> None:
        self._scope = Scope(settings.namespaces)
        self._api, self._cache, self._telemetry, self._reconcile = api, cache, telemetry, reconcile
        self._lease_api = Api(api.configuration, telemetry.api_call)
        self._lease = Lease(self._lease_api, settings.own_namespace, settings.identity)
        self._queue = Queue()
        self._stopping = asyncio.Event()
        self._leading = self._filled = False
        self._busy: dict[Key, float] = {}
        self._unseen: Mapping[str, Body] = {}
        self._overdue: list[str] = []

    def ready(self) -> bool:
        """Readiness: leads and knows all jobs, or stands by and knows the leader."""
        return not self._stopping.is_set() and (self._filled if self._leading else self._lease.is_read)

    def alive(self) -> bool:
        """Liveness: no reconcile far beyond its deadline, and watches deliver what listings show."""
        return not self._overdue and all(
            time.monotonic() < since + _STUCK_SECONDS for since in self._busy.values()
        )

    async def run(self) -> None:
        """Runs until SIGTERM; raises an ExceptionGroup with any other cause of its end."""
        self._listen_to_signals()
        async with EventLoop("lease") as aside:
            try:
                await self._lead_until_stopped(aside)
            except* _Stopped:
                pass
            finally:
                self._telemetry.leading(False)
                await aside.run_async(self._lease.release())
                await aside.run_async(self._lease_api.close())

    async def _lead_until_stopped(self, aside: EventLoop) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._until_stopped())
            await aside.run_async(self._lease.acquire())
            group.create_task(aside.run_async(self._lease.keep()))
            await self._lead(group)

    async def _lead(self, group: asyncio.TaskGroup) -> None:
        logger.info("leading as %s", self._lease.identity)
        self._api.fence = self._lease.is_held
        self._leading = True
        self._telemetry.leading(True)
        kinds = await self._fill()
        group.create_task(self._watch(kinds))
        self._filled = True
        logger.info("watching %s; %d jobs", ", ".join(kinds), len(self._cache.keys()))
        group.create_task(self._resync(kinds))
        for _ in range(WORKERS):
            group.create_task(self._work())

    async def _fill(self) -> Collection[str]:
        while True:
            try:
                kinds = await kinds_served(self._api)
                await self._list(kinds, first=True)
                return kinds
            except ApiError as error:
                logger.warning("could not list jobs and pods, trying again: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _watch(self, kinds: Collection[str]) -> None:
        """Watches until a watch fails; restarts when the set of served namespaces changes."""
        while True:
            served = self._scope.open
            ends = (watch(self._api, served, kinds, self._see), self._scope.other_than(served))
            tasks = [asyncio.create_task(end) for end in ends]
            try:
                for end in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                    end.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)

    def _see(self, body: Body, deleted: bool) -> None:
        # The watch of a namespace closed just now may still deliver a job whose pods are unknown.
        if body["metadata"]["namespace"] not in self._scope.closed:
            self._know(body, deleted)

    def _know(self, body: Body, deleted: bool) -> None:
        if (key := self._keep(body, deleted)) is not None:
            self._queue.add(key, after=_BATCH_SECONDS if _progresses(body, deleted) else None)

    def _keep(self, body: Body, deleted: bool) -> Key | None:
        key = self._cache.drop(body) if deleted else self._cache.put(body)
        if key is not None and body["kind"] == "RLHFJob":
            self._telemetry.job(key, None if deleted else body.get("status") or {})
        return key

    async def _resync(self, kinds: Collection[str]) -> None:
        wait = _FIRST_RESYNC_SECONDS
        while True:
            await asyncio.sleep(wait)
            wait = _RESYNC_SECONDS
            try:
                if changed := {*await kinds_served(self._api)} ^ {*kinds}:
                    warning = "the API server has begun or ceased to serve %s: stopping, to be restarted by Kubernetes"
                    logger.warning(warning, ", ".join(changed))
                    self._stopping.set()
                    return
                swept = await self._list(kinds, first=False)
                if swept.older:
                    warning = "revisions have gone back, as after a restore of etcd, at %s: stopping, to be restarted"
                    logger.warning(warning + " by Kubernetes", swept.older[0])
                    self._stopping.set()
                    return
            except ApiError as error:
                logger.warning("could not list the watched objects, trying again in %g s: %s", wait, error)
                continue
            self._overdue = resync.missed_changes(self._unseen, swept.unseen, self._cache)
            self._unseen = swept.unseen
            if self._overdue:
                logger.error("a watch is stuck: for %g s it has not reported %s", wait, self._overdue[0])
            for key in swept.touched:
                self._queue.add(key)
            # Of what rests the watches tell, and where they do not, the listing has just found out.
            for key in self._cache.active_keys():
                self._queue.add(key, after=random.uniform(0, wait / 2))

    async def _list(self, kinds: Collection[str], *, first: bool) -> resync.ListingDiff:
        """Lists each namespace. A newly listed one is added to the cache; one that cannot be listed any more is removed
        from it.
        """
        all_swept = resync.ListingDiff()

        async def list_namespace(namespace: str | None) -> None:
            if not first:
                swept = await resync.sweep(self._api, namespace, kinds, self._cache)
                all_swept.touched.update(swept.touched)
                all_swept.unseen.update(swept.unseen)
                all_swept.older.extend(swept.older)
            if first or namespace in self._scope.closed:
                await resync.fill(self._api, namespace, kinds, self._keep)
                keys, active = self._cache.keys(), set(self._cache.active_keys())
                for key in keys:  # those at rest after all others: there may be thousands
                    self._queue.add(key, after=None if key in active else _BATCH_SECONDS)

        for namespace in await self._scope.each(list_namespace):
            all_swept.touched.update(self._cache.leave(namespace))
        return all_swept

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            if self._stopping.is_set():
                return
            if not self._lease.is_held():  # a process that was frozen may resume here before it notices
                raise LeaseLost("the lease had run out before a reconcile")
            self._telemetry.queue_depth(len(self._queue))
            self._busy[key] = started = time.monotonic()
            try:
                with about(key):
                    outcome = await self._look_at(key)
            finally:
                del self._busy[key]
            self._telemetry.reconciled(time.monotonic() - started, outcome)

    async def _look_at(self, key: Key) -> Outcome:
        try:
            async with asyncio.timeout(_RECONCILE_SECONDS):
                again = await self._reconcile(key)
        except ApiError as error:
            wait = self._queue.failed(key, hold=min(error.retry_after or 0.0, _LONGEST_HOLD))
            logger.warning("%s; trying again in %.1f s", error, wait)
            return "refused" if error.of_job else "error"
        except Exception:
            wait = self._queue.failed(key)
            logger.exception("the reconcile failed; trying again in %.1f s", wait)
        else:
            self._queue.done(key, again)
            return "done"
        return "error"

    async def _until_stopped(self) -> None:
        """Stops taking new work, and gives running reconciles a grace period."""
        await self._stopping.wait()
        logger.info("stopping")
        deadline = time.monotonic() + _STOP_SECONDS
        while self._busy and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        raise _Stopped

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stopping.set)


def _progresses(body: Body, deleted: bool) -> bool:
    """A pod on its way to being ready; one that ends, or is to end, is looked at without delay."""
    ends = deleted or "deletionTimestamp" in body["metadata"]
    return body["kind"] == "Pod" and not ends and body.get("status", {}).get("phase") not in OVER


class _Stopped(Exception):
    """A stop was requested."""
