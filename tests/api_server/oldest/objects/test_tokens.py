"""The Secret of a job's token, without which no pod of it starts: made again where somebody deletes it."""

import base64
from typing import Any

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job
from tests.unit.operator.cluster.observe.test_trainer_client import REPORT, answering, serving

from rlhf_operator.cluster.objects.companions import owned, token, token_secret
from rlhf_operator.job.snapshot import Job

pytestmark = pytest.mark.usefixtures("crd")
NEW, FORMER = b"n" * 32, b"f" * 32
ADDRESS = "127.9.0.5"


async def waits_for(operator: SteppedOperator, secret: str, pod: str = "ppo-trainer-0") -> None:
    """The pod's kubelet says that there is no such Secret."""
    waiting = {"reason": "CreateContainerConfigError", "message": f'secret "{secret}" not found'}
    container = {
        "name": "role",
        "image": "trainer:1",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    path = f"/api/v1/namespaces/{operator.namespace}/pods/{pod}/status"
    patch = {"status": {"phase": "Pending", "containerStatuses": [container]}}
    await operator.api._merge("patch", "Pod", path, patch)


async def answers(operator: SteppedOperator) -> None:
    """The trainer's kubelet says that it runs, at ADDRESS."""
    container = {
        "name": "role",
        "image": "trainer:1",
        "imageID": "",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    status = {"phase": "Running", "podIP": ADDRESS, "containerStatuses": [container]}
    path = f"/api/v1/namespaces/{operator.namespace}/pods/ppo-trainer-0/status"
    await operator.api._merge("patch", "Pod", path, {"status": status})


async def list_events(operator: SteppedOperator, reason: str) -> list[dict[str, Any]]:
    events = [event async for event in operator.api.list("Event", operator.namespace)]
    return [event for event in events if event["reason"] == reason]


async def begun(operator: SteppedOperator) -> str:
    """Makes the job and, by one look, its objects; returns the name of the token's Secret."""
    await operator.api.create(job(operator.namespace))
    await operator.reconcile("ppo")
    (secret,) = await operator.names("Secret")
    return secret


def test_a_token_that_is_deleted_before_a_pod_starts_is_made_again_and_told(
    operators: Operators, namespace: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        secret = await begun(operator)
        await operator.bind("ppo-trainer-0")
        await operator.api.delete("Secret", namespace, secret)
        await waits_for(operator, secret)
        for _ in range(2):
            await operator.reconcile("ppo")
        assert await operator.names("Secret") == {secret}
        (event,) = await list_events(operator, "TokenRestored")
        assert secret in event["message"]
        assert event["count"] == 1
        status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
        (stalled,) = (each for each in status["conditions"] if each["type"] == "Stalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "CreateContainerConfigError")
        assert f'secret "{secret}" not found' in stalled["message"]

    operators(body)


def test_for_a_secret_of_the_users_own_no_token_is_made(operators: Operators, namespace: str) -> None:
    async def body(operator: SteppedOperator) -> None:
        secret = await begun(operator)
        await operator.bind("ppo-trainer-0")
        await operator.api.delete("Secret", namespace, secret)
        await waits_for(operator, "s3-credentials")
        await operator.reconcile("ppo")
        assert await operator.names("Secret") == set()

    operators(body)


def test_a_token_that_is_made_again_is_that_of_the_running_trainer(
    operators: Operators, namespace: str
) -> None:
    """A pod that starts after the operator's key was changed is to talk to those from before."""

    async def body(operator: SteppedOperator) -> None:
        secret = await begun(operator)
        known = token(FORMER, Job.of(await operator.api.get("RLHFJob", namespace, "ppo")))

        await operator.bind("ppo-trainer-0")
        await answers(operator)
        async with serving(answering(REPORT), ADDRESS, 8000, has=known):
            while (await operator.api.get("RLHFJob", namespace, "ppo"))["status"].get("step") != 1:
                await operator.reconcile("ppo")
            await operator.api.delete("Secret", namespace, secret)
            await operator.bind("ppo-reward-0")
            await waits_for(operator, secret, "ppo-reward-0")
            await operator.reconcile("ppo")
        made = await operator.api.get("Secret", namespace, secret)
        assert base64.b64decode(made["data"]["token"]).decode() == known

    operators(body, token_key=NEW, previous_token_key=FORMER)


def test_where_a_key_is_lost_a_job_gets_a_token_of_the_new_one_with_new_pods(
    operators: Operators, namespace: str
) -> None:
    async def body(operator: SteppedOperator) -> None:
        api = operator.api
        made = Job.of(await api.create(job(namespace)))
        secret = (await api.create(owned(token_secret(FORMER, made), made)))["metadata"]["name"]
        await operator.reconcile("ppo")
        await operator.bind("ppo-trainer-0")
        await operator.reconcile("ppo")
        await api.delete("Secret", namespace, secret)
        for pod in [pod async for pod in api.list("Pod", namespace)]:
            await api.delete("Pod", namespace, pod["metadata"]["name"], grace=0)
            operator.cache.drop(pod)
        while "ppo-trainer-0" not in await operator.names("Pod"):
            await operator.reconcile("ppo")
        again = await api.get("Secret", namespace, secret)
        assert base64.b64decode(again["data"]["token"]).decode() == token(NEW, made)
        labels = (await api.get("Pod", namespace, "ppo-trainer-0"))["metadata"]["labels"]
        assert labels["rlhf.dev/attempt"] == "2", "which resumes"

    operators(body, token_key=NEW)
