"""An operator that reconciles one job at a time, when a test says so."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

from tests.api_server.oldest.jobs import PPO

from rlhf_operator.cluster.act.recorder import Recorder
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.reconcile import Reconciler
from rlhf_operator.cluster.telemetry import Telemetry
from rlhf_operator.cluster.watching import resync
from rlhf_operator.cluster.watching.cache import COMPANIONS, Cache
from rlhf_operator.cluster.watching.watch import kinds_served
from rlhf_operator.kube.api import Api


class Operators(Protocol):
    """Runs what a test does with as many operators as it has parameters; `settings`: of all of them."""

    def __call__(self, body: Callable[..., Awaitable[None]], **settings: Any) -> None: ...


class SteppedOperator:
    """With a cache of its own, filled before each reconcile."""

    def __init__(self, api: Api, namespace: str, **more: Any) -> None:
        self.api, self.cache, self.namespace = api, Cache(), namespace
        settings = Settings(
            **{"trainer_image": "trainer:1", "token_key": b"k" * 48, "own_namespace": namespace, **more}
        )
        self.reconciler = Reconciler(settings, api, self.cache, Recorder(api), Telemetry())

    async def fill_cache(self) -> None:
        """All there is."""
        kinds = await kinds_served(self.api)
        await resync.fill(self.api, self.namespace, kinds, lambda body, _: self.cache.put(body))

    async def sweep(self) -> resync.ListingDiff:
        """Lists all objects; returns those that the cache did not have so."""
        return await resync.sweep(self.api, self.namespace, await kinds_served(self.api), self.cache)

    async def reconcile_cached(self, name: str) -> None:
        """On what the cache has already."""
        await self.reconciler.reconcile((self.namespace, name))

    async def reconcile(self, name: str) -> None:
        await self.fill_cache()
        await self.reconcile_cached(name)

    async def bind(self, name: str, node: str = "of-paper") -> None:
        """Puts a pod on a node, as a scheduler does."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self.api._call("create", "POST", "Binding", path, body=body)

    async def names(self, kind: str) -> set[str]:
        listing = self.api.list(kind, self.namespace, labels="rlhf.dev/job")
        return {body["metadata"]["name"] async for body in listing}


@asynccontextmanager
async def stepped_operator(namespace: str, **settings: Any) -> AsyncIterator[SteppedOperator]:
    """In the cluster that KUBECONFIG names; `settings`: more of the operator's."""
    async with asyncio.timeout(240), await Api.connect() as api:
        working = SteppedOperator(api, namespace, **settings)
        yield working
        await working.reconciler.close()


SERVED = tuple(kind for kind in COMPANIONS if kind != "PodGroup.scheduling.k8s.io")
"""Kinds beside pods that this API server can serve: it is older than Kubernetes' own gangs."""


def job(namespace: str, name: str = "ppo") -> dict:
    return {**PPO, "metadata": {"name": name, "namespace": namespace}}


def with_companion(namespace: str, kind: str) -> dict:
    """A job that has an object of this kind."""
    gangs = {"PodGroup.scheduling.volcano.sh": "volcano", "PodGroup.scheduling.x-k8s.io": "coscheduling"}
    more = {"trainer": {"replicas": 2}, "scheduling": {"gang": gangs.get(kind, "none")}}
    made = job(namespace)
    if kind == "ResourceClaimTemplate":
        claimed = {"gpu": {"count": 1, "deviceClass": "gpu.example.com"}}
        more["reward"] = {**made["spec"].get("reward", {}), "pods": claimed}
    return {**made, "spec": {**made["spec"], **more}}
