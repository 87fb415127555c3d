"""An operator dies between the status that tells of an attempt and the pods: what was never made is no attempt."""

import asyncio
from typing import Any

import pytest
from tests.kube.hands import Hands, hands, job
from tests.support.cluster import Cluster

from rlhf_operator.cluster.api import ApiError

pytestmark = pytest.mark.usefixtures("crd")
QUOTAS = "/api/v1/namespaces/{}/resourcequotas"


class Died(Exception):
    """Of the operator."""


async def dies_after_the_status(operator: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(operator.reconciler, "_delete_pods", die)  # the first that comes after the status
        with pytest.raises(Died):
            await operator.look("ppo")


async def trainer(operator: Hands) -> tuple[str, str]:
    """Attempt and configuration of the trainer that is there."""
    pod = await operator.api.get("Pod", operator.namespace, "ppo-trainer-0")
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    return pod["metadata"]["labels"]["rlhf.dev/attempt"], env["RLHF_RUN_CONFIG"].rpartition("/")[2]


async def goes(operator: Hands) -> None:
    """The trainer's pod is gone before anybody looks."""
    pod = await operator.api.get("Pod", operator.namespace, "ppo-trainer-0")
    await operator.api.delete("Pod", operator.namespace, "ppo-trainer-0", grace=0)
    operator.cache.drop(pod)


async def no_pods(operator: Hands) -> None:
    """A quota for none, once the server goes by it."""
    api, path = operator.api, QUOTAS.format(operator.namespace)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}}
    quota = await api._call("create", "POST", "ResourceQuota", path, body=quota)
    # What its controller counts, which does not run here.
    status = {"hard": {"pods": "0"}, "used": {"pods": "0"}}
    await api._call("update", "PUT", "ResourceQuota", f"{path}/none/status", body=quota | {"status": status})
    pod = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "probe", "image": "none"}]}}
    pods, only = f"/api/v1/namespaces/{operator.namespace}/pods", {"dryRun": "All"}

    async def probe() -> None:
        while True:
            await api._call("create", "POST", "Pod", pods, query=only, body=pod)

    with pytest.raises(ApiError, match="exceeded quota"):
        await probe()


def test_the_next_operator_makes_the_attempt_that_the_status_tells_of(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that was told to resume would go on from what another run has left in its store, without a word."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def body() -> None:
        async with hands(namespace) as first, hands(namespace) as second, hands(namespace) as third:
            await first.api.create(job(namespace))
            await dies_after_the_status(first, monkeypatch)
            await dies_after_the_status(second, monkeypatch)
            with pytest.raises(ApiError, match="404"):
                await trainer(third)
            await third.look("ppo")
            assert await trainer(third) == ("1", "start.json")
            cluster = (await third.api.get("RLHFJob", namespace, "ppo"))["status"]["cluster"]
            assert (cluster["attempt"], cluster.get("restarts", {})) == (1, {})

    asyncio.run(body())


@pytest.mark.parametrize(("had_a_node", "then"), [(False, ("1", "start.json")), (True, ("2", "resume.json"))])
def test_a_trainer_that_had_a_node_may_have_left_checkpoints(
    control_plane: Cluster,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    had_a_node: bool,
    then: tuple[str, str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def body() -> None:
        async with hands(namespace) as first, hands(namespace) as second:
            await first.api.create(job(namespace))
            await first.look("ppo")
            if had_a_node:
                await first.bind("ppo-trainer-0")
                await first.look("ppo")
            await goes(first)
            await second.look("ppo")
            assert await trainer(second) == then

    asyncio.run(body())


def test_an_attempt_that_a_quota_refuses_is_the_first_one_for_the_next_operator_too(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def body() -> None:
        async with hands(namespace) as first, hands(namespace) as second:
            await no_pods(first)
            await first.api.create(job(namespace))
            for operator in (first, first, second):
                with pytest.raises(ApiError, match=r"403 .* quota"):
                    await operator.look("ppo")
            await first.api._call("delete", "DELETE", "ResourceQuota", QUOTAS.format(namespace) + "/none")
            await second.look("ppo")
            assert await trainer(second) == ("1", "start.json")

    asyncio.run(body())


def test_pods_that_are_taken_away_before_they_get_a_node_are_made_again_after_pauses(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever takes them away, it may do so for ever."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))

    async def body() -> None:
        async with hands(namespace) as operator:
            await operator.api.create(job(namespace))
            await operator.look("ppo")
            await goes(operator)
            for _ in range(2):
                await operator.look("ppo")
                await asyncio.sleep(0.6)  # the pause before a start
            assert await trainer(operator) == ("1", "start.json")
            cluster = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]["cluster"]
            assert cluster["restarts"]["trainer"]["disruptions"] == 1

    asyncio.run(body())
