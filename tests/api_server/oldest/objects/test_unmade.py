"""An operator dies between the status that tells of an attempt and the pods: what was never made is no attempt."""

from contextlib import suppress
from typing import Any

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

from rlhf_operator.kube.api_error import ApiError

pytestmark = pytest.mark.usefixtures("crd")


class Died(Exception):
    """Of the operator."""


async def dies_after_the_status(operator: SteppedOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(operator.reconciler, "_delete_pods", die)  # the first that comes after the status
        with pytest.raises(Died):
            await operator.reconcile("ppo")


async def trainer(operator: SteppedOperator) -> tuple[str, str]:
    """Attempt and configuration of the trainer that is there."""
    pod = await operator.api.get("Pod", operator.namespace, "ppo-trainer-0")
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    return pod["metadata"]["labels"]["rlhf.dev/attempt"], env["RLHF_RUN_CONFIG"].rpartition("/")[2]


async def goes(operator: SteppedOperator) -> None:
    """The trainer's pod is gone before anybody looks."""
    pod = await operator.api.get("Pod", operator.namespace, "ppo-trainer-0")
    await operator.api.delete("Pod", operator.namespace, "ppo-trainer-0", grace=0)
    operator.cache.drop(pod)


def test_the_next_operator_makes_the_attempt_that_the_status_tells_of(
    operators: Operators, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that was told to resume would go on from what another run has left in its store, without a word."""

    async def body(first: SteppedOperator, second: SteppedOperator, third: SteppedOperator) -> None:
        await first.api.create(job(namespace))
        await dies_after_the_status(first, monkeypatch)
        await dies_after_the_status(second, monkeypatch)
        with pytest.raises(ApiError, match="404"):
            await trainer(third)
        await third.reconcile("ppo")
        assert await trainer(third) == ("1", "start.json")
        cluster = (await third.api.get("RLHFJob", namespace, "ppo"))["status"]["cluster"]
        assert (cluster["attempt"], cluster.get("restarts", {})) == (1, {})

    operators(body)


@pytest.mark.parametrize(("had_a_node", "then"), [(False, ("1", "start.json")), (True, ("2", "resume.json"))])
def test_a_trainer_that_had_a_node_may_have_left_checkpoints(
    operators: Operators, namespace: str, had_a_node: bool, then: tuple[str, str]
) -> None:
    async def body(first: SteppedOperator, second: SteppedOperator) -> None:
        await first.api.create(job(namespace))
        await first.reconcile("ppo")
        if had_a_node:
            await first.bind("ppo-trainer-0")
            await first.reconcile("ppo")
        await goes(first)
        await second.reconcile("ppo")
        assert await trainer(second) == then

    operators(body)


def test_an_attempt_that_the_server_refuses_is_the_first_one_for_the_next_operator_too(
    operators: Operators, namespace: str
) -> None:
    """The server refuses a PriorityClass that does not exist yet; an exhausted quota has the same status code."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"

    async def body(first: SteppedOperator, second: SteppedOperator) -> None:
        made = job(namespace)
        template = {"spec": {"priorityClassName": namespace}}
        made["spec"] = {**made["spec"], "pods": {"template": template}}
        await first.api.create(made)
        for operator in (first, first, second):
            with pytest.raises(ApiError, match=r"403 Forbidden: .* no PriorityClass"):
                await operator.reconcile("ppo")
        await first.api._call(
            "create",
            "POST",
            "PriorityClass",
            classes,
            body=kind | {"metadata": {"name": namespace}, "value": 1},
        )
        while "ppo-trainer-0" not in await second.names("Pod"):
            with suppress(ApiError):  # the server has not seen the class yet
                await second.reconcile("ppo")
        assert await trainer(second) == ("1", "start.json")
        await first.api._call("delete", "DELETE", "PriorityClass", f"{classes}/{namespace}")

    operators(body)


def test_pods_that_are_taken_away_before_they_get_a_node_are_made_again_after_pauses(
    operators: Operators, namespace: str
) -> None:
    """With growing pauses, since another controller may delete them again and again."""

    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        await operator.reconcile("ppo")
        await goes(operator)
        for _ in range(2):
            await operator.reconcile("ppo")
        assert await trainer(operator) == ("1", "start.json")
        cluster = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]["cluster"]
        assert cluster["restarts"]["trainer"]["disruptions"] == 1

    operators(body)
