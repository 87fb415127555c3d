"""An operator whose looks at jobs are taken one by one, for tests that say when it looks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.kube.jobs import PPO

from rlhf_operator.cluster import resync
from rlhf_operator.cluster.api import Api
from rlhf_operator.cluster.cache import Cache
from rlhf_operator.cluster.reconcile import Reconciler
from rlhf_operator.cluster.recorder import Recorder
from rlhf_operator.cluster.settings import Settings
from rlhf_operator.cluster.telemetry import Telemetry

WATCHED = ("RLHFJob", "Pod")

Operators = Callable[[Callable[..., Awaitable[None]]], None]
"""Runs what a test does with as many operators as it has parameters."""


class Hands:
    """With a cache of its own, filled when it looks."""

    def __init__(self, api: Api, namespace: str, image: str, **more: Any) -> None:
        self.api, self.cache, self.namespace = api, Cache(), namespace
        settings = Settings(trainer_image=image, token_key=b"k" * 48, own_namespace=namespace, **more)
        self.reconciler = Reconciler(settings, api, self.cache, Recorder(api), Telemetry())

    async def see(self) -> None:
        """All there is."""
        await resync.fill(self.api, self.namespace, WATCHED, lambda body, _: self.cache.put(body))

    async def act(self, name: str) -> None:
        """On what was seen."""
        await self.reconciler.reconcile((self.namespace, name))

    async def look(self, name: str) -> None:
        await self.see()
        await self.act(name)

    async def bind(self, name: str) -> None:
        """Puts a pod on a node, as a scheduler does."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
        target = {"apiVersion": "v1", "kind": "Node", "name": "of-paper"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self.api._call("create", "POST", "Binding", path, body=body)

    async def names(self, kind: str) -> set[str]:
        found = self.api.list(kind, self.namespace, labels="rlhf.dev/job")
        return {body["metadata"]["name"] async for body in found}


@asynccontextmanager
async def hands(namespace: str, image: str = "trainer:1", **settings: Any) -> AsyncIterator[Hands]:
    """In the cluster that KUBECONFIG names; `settings`: more of the operator's."""
    async with asyncio.timeout(60), await Api.connect() as api:
        working = Hands(api, namespace, image, **settings)
        yield working
        await working.reconciler.close()


def job(namespace: str, name: str = "ppo") -> dict:
    return {**PPO, "metadata": {"name": name, "namespace": namespace}}
