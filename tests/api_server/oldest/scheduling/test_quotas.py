"""A ResourceQuota without room for all pods of a role."""

import asyncio

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

from rlhf_operator.cluster.decide import refusal
from rlhf_operator.kube.api_error import ApiError

pytestmark = pytest.mark.usefixtures("crd")
ROOM, GENERATORS = 6, 100


async def limit_pods(operator: SteppedOperator) -> None:
    """Returns when the quota is in force."""
    path = f"/api/v1/namespaces/{operator.namespace}/resourcequotas"
    body = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": str(ROOM)}}}
    await operator.api._call("create", "POST", "ResourceQuota", path, body=body)
    while not (await operator.api._call("get", "GET", "ResourceQuota", f"{path}/tight"))["status"].get(
        "hard"
    ):
        await asyncio.sleep(0.1)


def test_one_refusal_stands_for_all_pods_of_a_role(operators: Operators, namespace: str) -> None:
    async def body(operator: SteppedOperator) -> None:
        await limit_pods(operator)
        answers = list[int]()

        def count(verb: str, kind: str, status: int, _: float) -> None:
            if (verb, kind) == ("create", "Pod"):
                answers.append(status)

        operator.api._observe = count
        made = job(namespace)
        made["spec"] = {**made["spec"], "generator": {"replicas": GENERATORS}}
        await operator.api.create(made)
        for refused in (GENERATORS // 10, 1):
            with pytest.raises(ApiError, match=f"exceeded quota: tight.*limited: pods={ROOM}"):
                await operator.reconcile("ppo")
            assert 1 <= answers.count(403) <= refused
            assert len(await operator.names("Pod")) == ROOM
            answers.clear()

    operators(body)


def test_a_job_that_a_limit_range_has_made_invalid_goes_on_once_that_is_gone(
    operators: Operators, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its default limit is below the job's request: the server answers as for a mistake in the job."""
    monkeypatch.setattr(refusal, "ASK_AGAIN_SECONDS", 0.0)

    async def body(operator: SteppedOperator) -> None:
        path = f"/api/v1/namespaces/{namespace}/limitranges"
        limits = {"limits": [{"type": "Container", "default": {"cpu": "2"}}]}
        made = {"metadata": {"name": "small"}, "spec": limits}
        await operator.api._call("create", "POST", "LimitRange", path, body=made)
        large = job(namespace)
        large["spec"] = {**large["spec"], "pods": {"resources": {"requests": {"cpu": "4"}}}}
        await operator.api.create(large)
        with pytest.raises(ApiError, match="must be less than or equal to cpu limit"):
            await operator.reconcile("ppo")
        for _ in range(3):
            await operator.reconcile("ppo")
        status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
        reasons = {c["type"]: c["reason"] for c in status["conditions"]}
        assert (status["phase"], reasons["Failed"]) == ("Failed", "InvalidPod")
        assert not await operator.names("Pod")
        await operator.api._call("delete", "DELETE", "LimitRange", f"{path}/small")
        async with asyncio.timeout(60):
            while len(await operator.names("Pod")) < 4:
                await operator.reconcile("ppo")

    operators(body)
