"""The Secret of a job's token, without which no pod of it starts: made again where somebody deletes it."""

import asyncio
from typing import Any

import pytest
from tests.kube.hands import Hands, hands, job
from tests.support.cluster import Cluster

pytestmark = pytest.mark.usefixtures("crd")


async def waits_for(operator: Hands, secret: str) -> None:
    """The trainer's kubelet says that there is no such Secret."""
    waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{secret}" not found'}
    container = {
        "name": "role",
        "image": "trainer:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    path = f"/api/v1/namespaces/{operator.namespace}/pods/ppo-trainer-0/status"
    patch = {"status": {"phase": "Pending", "containerStatuses": [container]}}
    await operator.api._merge("patch", "Pod", path, patch)


async def told(operator: Hands, reason: str) -> list[dict[str, Any]]:
    events = [event async for event in operator.api.list("Event", operator.namespace)]
    return [event for event in events if event["reason"] == reason]


def test_a_token_that_is_deleted_before_a_pod_starts_is_made_again_and_told(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def body() -> None:
        async with hands(namespace) as operator:
            await operator.api.create(job(namespace))
            await operator.look("ppo")
            (secret,) = await operator.names("Secret")
            await operator.bind("ppo-trainer-0")
            await operator.api.delete("Secret", namespace, secret)
            await waits_for(operator, secret)
            for _ in range(2):
                await operator.look("ppo")
            assert await operator.names("Secret") == {secret}
            (event,) = await told(operator, "TokenRestored")
            assert secret in event["message"]
            assert event["count"] == 1
            status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
            (stalled,) = (each for each in status["conditions"] if each["type"] == "Stalled")
            assert (stalled["status"], stalled["reason"]) == ("True", "CreateContainerConfigError")
            assert f'secret "{secret}" not found' in stalled["message"]

    asyncio.run(body())


def test_for_a_secret_of_the_users_own_no_token_is_made(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def body() -> None:
        async with hands(namespace) as operator:
            await operator.api.create(job(namespace))
            await operator.look("ppo")
            (secret,) = await operator.names("Secret")
            await operator.bind("ppo-trainer-0")
            await operator.api.delete("Secret", namespace, secret)
            await waits_for(operator, "s3-credentials")
            await operator.look("ppo")
            assert await operator.names("Secret") == set()

    asyncio.run(body())
