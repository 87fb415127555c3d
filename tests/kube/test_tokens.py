"""The Secret of a job's token, without which no pod of it starts: made again where somebody deletes it."""

from typing import Any

import pytest
from tests.kube.hands import Hands, Operators, job

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
    operators: Operators, namespace: str
) -> None:
    async def body(operator: Hands) -> None:
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

    operators(body)


def test_for_a_secret_of_the_users_own_no_token_is_made(operators: Operators, namespace: str) -> None:
    async def body(operator: Hands) -> None:
        await operator.api.create(job(namespace))
        await operator.look("ppo")
        (secret,) = await operator.names("Secret")
        await operator.bind("ppo-trainer-0")
        await operator.api.delete("Secret", namespace, secret)
        await waits_for(operator, "s3-credentials")
        await operator.look("ppo")
        assert await operator.names("Secret") == set()

    operators(body)
