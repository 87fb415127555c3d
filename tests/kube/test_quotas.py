"""A ResourceQuota without room for all pods of a role."""

import asyncio

import pytest
from tests.kube.hands import Hands, Operators, job

from rlhf_operator.cluster.api_error import ApiError

pytestmark = pytest.mark.usefixtures("crd")
ROOM, GENERATORS = 6, 100


async def limit_pods(operator: Hands) -> None:
    """Returns when the quota is in force."""
    path = f"/api/v1/namespaces/{operator.namespace}/resourcequotas"
    body = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": str(ROOM)}}}
    await operator.api._call("create", "POST", "ResourceQuota", path, body=body)
    while not (await operator.api._call("get", "GET", "ResourceQuota", f"{path}/tight"))["status"].get(
        "hard"
    ):
        await asyncio.sleep(0.1)


def test_one_refusal_stands_for_all_pods_of_a_role(operators: Operators, namespace: str) -> None:
    async def body(operator: Hands) -> None:
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
                await operator.look("ppo")
            assert 1 <= answers.count(403) <= refused
            assert len(await operator.names("Pod")) == ROOM
            answers.clear()

    operators(body)
