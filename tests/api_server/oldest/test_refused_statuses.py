"""A status that the installed definition does not allow is told once, and the job goes on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api_server.oldest.jobs import PODS
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import KubectlError, eventually, get, kubectl

from rlhf_operator.cluster.act import status_writer

pytestmark = pytest.mark.usefixtures("crd")
NAME = "rlhfjobs.rlhf.dev"


def install(kubeconfig: Path, phases: list[str]) -> None:
    """The definition with these phases, as the server serves it then."""
    definition = get(kubeconfig, "crd", NAME)
    for version in definition["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["phase"]["enum"] = phases
    patch = json.dumps({"spec": {"versions": definition["spec"]["versions"]}})
    kubectl(kubeconfig, "patch", "crd", NAME, "--type=merge", "--patch", patch)


def until_served(kubeconfig: Path, namespace: str, *, refused: bool) -> None:
    """A status of phase Provisioning is refused, or is not."""
    probe = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "probe"}}
    made = {**probe, "spec": job(namespace)["spec"], "status": {"phase": "Provisioning", "totalSteps": 1}}
    where = f"/apis/rlhf.dev/v1alpha1/namespaces/{namespace}/rlhfjobs/probe/status"

    def served() -> bool:
        version = get(kubeconfig, "rlhfjob", "probe", "-n", namespace)["metadata"]["resourceVersion"]
        made["metadata"]["resourceVersion"] = version
        try:
            kubectl(kubeconfig, "replace", f"--raw={where}", "-f", "-", input=json.dumps(made))
        except KubectlError as error:
            return refused and "Unsupported value" in str(error)
        return not refused

    kubectl(kubeconfig, "create", "-n", namespace, "-f", "-", input=json.dumps(made))
    eventually(served, "the server serves the definition")
    kubectl(kubeconfig, "delete", "-n", namespace, "rlhfjob", "probe")


@pytest.fixture
def other_definition(control_plane: Cluster, namespace: str) -> Iterator[Any]:
    """A definition that has fewer phases, until this is called."""
    kubeconfig = control_plane.kubeconfig
    (version,) = get(kubeconfig, "crd", NAME)["spec"]["versions"]
    phases = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["phase"]["enum"]

    def mend() -> None:
        install(kubeconfig, phases)
        until_served(kubeconfig, namespace, refused=False)

    install(kubeconfig, ["Pending", "Failed"])
    until_served(kubeconfig, namespace, refused=True)
    yield mend
    install(kubeconfig, phases)


async def uids(operator: SteppedOperator) -> dict[str, str]:
    metadata = [pod["metadata"] async for pod in operator.api.list("Pod", operator.namespace)]
    return {meta["name"]: meta["uid"] for meta in metadata}


async def list_events(operator: SteppedOperator) -> list[dict[str, Any]]:
    events = [event async for event in operator.api.list("Event", operator.namespace)]
    return [event for event in events if event["reason"] == "StatusRefused"]


def test_a_job_whose_status_is_refused_goes_on(
    operators: Operators, namespace: str, monkeypatch: pytest.MonkeyPatch, other_definition: Any
) -> None:
    async def body(operator: SteppedOperator, successor: SteppedOperator) -> None:
        await operator.api.create(job(namespace))
        for _ in range(3):
            await operator.reconcile("ppo")
        before = await uids(operator)
        assert set(before) == PODS
        (event,) = await list_events(operator)
        assert event["count"] == 1
        assert 'status.phase: Unsupported value: "Provisioning"' in event["message"]
        assert "the job goes on" in event["message"]

        # A trainer that is lost is made again, as the next attempt; a successor leaves what runs alone.
        await operator.bind("ppo-trainer-0")
        await operator.reconcile("ppo")
        await operator.api.delete("Pod", namespace, "ppo-trainer-0", grace=0)
        operator.cache.drop_uids("Pod", [before["ppo-trainer-0"]])
        for _ in range(2):
            await operator.reconcile("ppo")
        pod = await operator.api.get("Pod", namespace, "ppo-trainer-0")
        assert pod["metadata"]["labels"]["rlhf.dev/attempt"] == "2"
        now = await uids(operator)
        assert {name for name in PODS if now[name] != before[name]} == {"ppo-trainer-0"}
        for _ in range(2):
            await successor.reconcile("ppo")
        assert await uids(successor) == now

        # Once the definition is as it was, the status is there.
        await asyncio.to_thread(other_definition)
        monkeypatch.setattr(status_writer, "_REFRESH_SECONDS", 0.0)
        await operator.reconcile("ppo")
        status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
        assert (status["phase"], status["cluster"]["attempt"]) == ("Provisioning", 2)

    operators(body)
