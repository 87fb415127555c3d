"""Nodes that exist on paper: pods bound to them "run" because this says so. For tests and benchmarks without kubelets.

Only the job's own pods are taken. What a kubelet would report is written to their status, and a pod that is being
deleted is let go at once.
"""

import asyncio
import datetime
import hashlib
import json
import ssl
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
from tests.support.kubernetes.cluster import Cluster

from rlhf_api.contract.run import place_named
from rlhf_api.rules.pods.template import CONTAINER

LABELS = "rlhf.dev/job"
"""Not the label by which the operator watches: a node runs pods that have lost it."""
NODE = "fake-node"
_MERGE = {"Content-Type": "application/strategic-merge-patch+json"}
_HEARTBEAT_S = 8.0
T = TypeVar("T")
JOBS: dict[str, str] = {}
"""Uids of jobs by the address of their trainer: each has one of its own, on loopback."""


class FakeNodes:
    """Runs beside the test, in a thread of its own. `address` is the IP of pods other than trainers; pods that select a
    node by anything but its `labels` stay pending."""

    def __init__(
        self, cluster: Cluster, *, address: str = "127.0.0.1", concurrent: int = 16, **labels: str
    ) -> None:
        self._server, self._address = cluster.server, address
        self._headers = {"Authorization": f"Bearer {cluster.token}"}
        self._ca = cluster.ca
        self._limit, self._labels = concurrent, labels
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def end(self, namespace: str, name: str, code: int = 1, message: str = "") -> None:
        """The role's container has ended; those beside it run, and its addresses stay.

        Raises:
            ValueError: the API server refuses it.
        """
        state = {
            "terminated": {"exitCode": code, "finishedAt": _now(), "startedAt": _now(), "message": message}
        }
        reply = self._run(self._end(namespace, name, state))
        if reply["kind"] != "Pod":
            raise ValueError(reply["message"])

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _open(self) -> None:
        context = ssl.create_default_context(cadata=self._ca)
        connector = aiohttp.TCPConnector(ssl=context, limit=self._limit)
        self._session = aiohttp.ClientSession(self._server, headers=self._headers, connector=connector)
        metadata = {"name": NODE, "labels": {"fake": "yes", **self._labels}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        await self._call("POST", "/api/v1/nodes", node)
        await self._heartbeat()
        for work in (self._beat(), self._watch()):
            self._keep(work)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._call("DELETE", f"/api/v1/nodes/{NODE}")
        await self._session.close()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "OnPaper", "lastHeartbeatTime": _now()}
        await self._call("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"conditions": [ready]}}, _MERGE)

    async def _watch(self) -> None:
        """Lists and watches the pods, again and again."""
        path = f"/api/v1/pods?labelSelector={LABELS}"
        while True:
            try:
                listing = await self._call("GET", path)
                for pod in listing["items"]:
                    self._keep(self._see(pod))
                version = listing["metadata"]["resourceVersion"]
                timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
                watch = f"{path}&watch=1&resourceVersion={version}&timeoutSeconds=50"
                async with self._session.get(watch, timeout=timeout) as stream:
                    async for line in stream.content:
                        self._keep(self._see(json.loads(line)["object"]))
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError):
                await asyncio.sleep(0.2)

    async def _see(self, pod: dict[str, Any]) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
        namespace, name = meta["namespace"], meta["name"]
        if "deletionTimestamp" in meta:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            await self._call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", options)
        elif not spec.get("nodeName") and spec.get("nodeSelector", {}).items() <= self._labels.items():
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            await self._call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding)
        elif spec.get("nodeName") == NODE and status.get("phase") == "Pending":
            address, state = self._address_of(meta), {"running": {"startedAt": _now()}}
            addresses = {"podIP": address, "podIPs": [{"ip": address}]}
            statuses = [_status(each, state) for each in (CONTAINER, *_others(pod))]
            await self._report(namespace, name, "Running", statuses, **addresses)

    def _address_of(self, meta: dict[str, Any]) -> str:
        owners = [owner["uid"] for owner in meta.get("ownerReferences", ())]
        if meta["labels"].get("rlhf.dev/role") != "trainer" or not owners:
            return self._address
        (uid,) = owners
        a, b, c = hashlib.sha256(uid.encode()).digest()[:3]
        JOBS[address := f"127.{128 + a // 2}.{b}.{1 + c % 254}"] = uid
        return address

    async def _end(self, namespace: str, name: str, state: dict[str, Any]) -> dict[str, Any]:
        pod = await self._call("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        others = [_status(each, {"running": {"startedAt": _now()}}) for each in _others(pod)]
        over = "Failed" if state["terminated"]["exitCode"] else "Succeeded"
        statuses = [_status(CONTAINER, state), *others]
        return await self._report(namespace, name, "Running" if others else over, statuses)

    async def _report(
        self, namespace: str, name: str, phase: str, statuses: Sequence[dict[str, Any]], **addresses: Any
    ) -> dict[str, Any]:
        ready = all(each["ready"] for each in statuses)
        status = {
            **addresses,
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": statuses,
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        return await self._call("PATCH", path, {"status": status}, _MERGE)

    async def _call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """The answer; a refusal (a pod that is gone by now) is an ordinary one."""
        async with self._session.request(method, path, json=body, headers=headers) as answer:
            reply: dict[str, Any] = await answer.json()
            return reply


def _others(pod: dict[str, Any]) -> list[str]:
    """Containers of the processes beside the pod's own one."""
    return [each["name"] for each in pod.get("spec", {}).get("containers", ()) if place_named(each["name"])]


def _status(name: str, state: dict[str, Any]) -> dict[str, Any]:
    """A container's, which is ready once it runs."""
    runs = "running" in state
    container = {"name": name, "image": "x", "imageID": "x", "restartCount": 0}
    return {**container, "ready": runs, "started": runs, "state": state}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
