"""A job that was deleted and is held by somebody's finalizer holds no GPUs."""

from typing import Any

import pytest
from tests.api_server.oldest.jobs import PODS
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

pytestmark = pytest.mark.usefixtures("crd")
PATH = "/apis/rlhf.dev/v1alpha1/namespaces/{}/rlhfjobs/ppo"


async def started(operator: SteppedOperator, *finalizers: str) -> None:
    made: dict[str, Any] = job(operator.namespace)
    made["metadata"]["finalizers"] = list(finalizers)
    await operator.api.create(made)
    await operator.reconcile("ppo")
    assert await operator.names("Pod") == PODS


async def release(operator: SteppedOperator) -> None:
    patch = {"metadata": {"finalizers": None}}
    await operator.api._merge("patch", "RLHFJob", PATH.format(operator.namespace), patch)


async def delete(operator: SteppedOperator, policy: str) -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy}
    path = PATH.format(operator.namespace)
    await operator.api._call("delete", "DELETE", "RLHFJob", path, body=options)


def test_its_pods_go_and_none_is_made(operators: Operators, namespace: str) -> None:
    async def body(operator: SteppedOperator) -> None:
        await started(operator, "example.com/archive")
        await delete(operator, "Background")
        for _ in range(2):
            await operator.reconcile("ppo")
        assert await operator.names("Pod") == set()  # without a node they go at once
        assert (await operator.api.get("RLHFJob", namespace, "ppo"))["metadata"]["deletionTimestamp"]
        await release(operator)

    operators(body)


def test_pods_that_are_to_be_left_are_left(operators: Operators) -> None:
    """`kubectl delete --cascade=orphan`, as long as the job is still there."""

    async def body(operator: SteppedOperator) -> None:
        await started(operator, "example.com/archive", "orphan")
        await delete(operator, "Orphan")
        await operator.reconcile("ppo")
        assert await operator.names("Pod") == PODS
        await release(operator)

    operators(body)
