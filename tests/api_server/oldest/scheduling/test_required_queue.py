"""Limits that require a queue, where the operator alone enforces them: no webhook, no admission policy."""

from typing import Any

import pytest
from tests.api_server.oldest.jobs import PODS
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.job.names import QUEUE
from rlhf_operator.kube.api_error import ApiError

pytestmark = pytest.mark.usefixtures("crd", "kueue")
REQUIRED = Limits.model_validate({"requireQueue": True})
PATH = "/apis/rlhf.dev/v1alpha1/namespaces/{}/rlhfjobs/ppo"


async def label(operator: SteppedOperator, queue: str | None) -> None:
    patch = {"metadata": {"labels": {QUEUE: queue}}}
    await operator.api._merge("patch", "RLHFJob", PATH.format(operator.namespace), patch)


async def status(operator: SteppedOperator) -> dict[str, Any]:
    job_status: dict[str, Any] = (await operator.api.get("RLHFJob", operator.namespace, "ppo"))["status"]
    return job_status


async def admit(operator: SteppedOperator) -> None:
    """As Kueue does."""
    fields = {"status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    held = [{"type": kind, **fields} for kind in ("QuotaReserved", "Admitted")]
    patch = {"status": {"conditions": held}}
    await operator.api.merge_status("Workload", operator.namespace, "ppo", patch)


def test_a_job_without_one_waits_and_lines_up_once_it_has_the_label(
    operators: Operators, namespace: str
) -> None:
    async def story(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        assert QUEUE in (await status(operator))["message"]
        with pytest.raises(ApiError, match="404"):
            await operator.api.get("Workload", namespace, "ppo")
        await label(operator, "research")
        for _ in range(2):
            await operator.reconcile("ppo")
        queued = await operator.api.get("Workload", namespace, "ppo")
        assert queued["spec"]["queueName"] == "research"
        assert "waiting for quota in queue research" in (await status(operator))["message"]

    operators(story, limits=REQUIRED)


def test_a_job_that_runs_cannot_leave_its_queue_and_keep_its_pods(
    operators: Operators, namespace: str
) -> None:
    """Kueue would give its quota to another job while its pods still hold the GPUs."""

    async def story(operator: SteppedOperator) -> None:
        made = job(namespace)
        made["metadata"]["labels"] = {QUEUE: "research"}
        await operator.api.create(made)
        await operator.reconcile("ppo")
        await admit(operator)
        await operator.reconcile("ppo")
        assert await operator.names("Pod") == PODS
        await label(operator, None)
        await operator.reconcile("ppo")
        assert await operator.names("Pod") == PODS
        assert (await operator.api.get("Workload", namespace, "ppo"))["spec"]["queueName"] == "research"

    operators(story, limits=REQUIRED)
