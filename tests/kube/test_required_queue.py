"""Limits that require a queue, where the operator alone enforces them: no webhook, no admission policy."""

import asyncio
from typing import Any

import pytest
from tests.kube.hands import Hands, hands, job
from tests.kube.jobs import PODS
from tests.support.cluster import Cluster

from rlhf_operator.cluster import resync
from rlhf_operator.cluster.api import ApiError
from rlhf_operator.cluster.limits import Limits
from rlhf_operator.cluster.names import QUEUE

pytestmark = pytest.mark.usefixtures("crd", "kueue")
REQUIRED = Limits.model_validate({"requireQueue": True})
PATH = "/apis/rlhf.dev/v1alpha1/namespaces/{}/rlhfjobs/ppo"


async def label(operator: Hands, queue: str | None) -> None:
    patch = {"metadata": {"labels": {QUEUE: queue}}}
    await operator.api._merge("patch", "RLHFJob", PATH.format(operator.namespace), patch)


async def look(operator: Hands) -> None:
    kinds = ("RLHFJob", "Pod", "Workload")
    await resync.fill(operator.api, operator.namespace, kinds, lambda body, _: operator.cache.put(body))
    await operator.act("ppo")


async def status(operator: Hands) -> dict[str, Any]:
    found: dict[str, Any] = (await operator.api.get("RLHFJob", operator.namespace, "ppo"))["status"]
    return found


async def admit(operator: Hands) -> None:
    """As Kueue does."""
    held = [{"type": kind, "status": "True", "reason": "Test"} for kind in ("QuotaReserved", "Admitted")]
    patch = {"status": {"conditions": held}}
    await operator.api.merge_status("Workload", operator.namespace, "ppo", patch)


def test_a_job_without_one_waits_and_lines_up_once_it_has_the_label(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def story() -> None:
        async with hands(namespace, limits=REQUIRED) as operator:
            await operator.api.create(job(namespace))
            await look(operator)
            assert QUEUE in (await status(operator))["message"]
            with pytest.raises(ApiError, match="404"):
                await operator.api.get("Workload", namespace, "ppo")
            await label(operator, "research")
            for _ in range(2):
                await look(operator)
            queued = await operator.api.get("Workload", namespace, "ppo")
            assert queued["spec"]["queueName"] == "research"
            assert "waits in queue research" in (await status(operator))["message"]

    asyncio.run(story())


def test_a_job_that_runs_cannot_leave_its_queue_and_keep_its_pods(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its quota would be another job's, and its GPUs not."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def story() -> None:
        async with hands(namespace, limits=REQUIRED) as operator:
            made = job(namespace)
            made["metadata"]["labels"] = {QUEUE: "research"}
            await operator.api.create(made)
            await look(operator)
            await admit(operator)
            await look(operator)
            assert await operator.names("Pod") == PODS
            await label(operator, None)
            await look(operator)
            assert await operator.names("Pod") == PODS
            assert (await operator.api.get("Workload", namespace, "ppo"))["spec"]["queueName"] == "research"

    asyncio.run(story())
