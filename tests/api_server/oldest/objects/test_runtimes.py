"""An administrator's runtime on a real API server: a job waits for it, and its pods are as it says."""

import asyncio
import json

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import kubectl

pytestmark = pytest.mark.usefixtures("crd")


@pytest.mark.parametrize("kind", ["ClusterRLHFRuntime", "RLHFRuntime"])
def test_a_job_waits_for_its_runtime_and_its_pods_are_as_it_says(
    operators: Operators, namespace: str, control_plane: Cluster, kind: str
) -> None:
    name = f"of-{namespace}"  # those of the whole cluster are all tests'
    where = {"namespace": namespace} if kind == "RLHFRuntime" else {}
    spec = {
        "pods": {"image": "admin:1", "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        "trainer": {"pods": {"nodeSelector": {"gpu": "h100"}}},
    }
    runtime = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, **where},
        "spec": spec,
    }
    waiting = job(namespace)
    waiting["spec"] = {**waiting["spec"], "runtime": {"kind": kind, "name": name}}

    def on_server(verb: str) -> None:
        kubectl(control_plane.kubeconfig, verb, "-f", "-", input=json.dumps(runtime))

    async def body(operator: SteppedOperator) -> None:
        await operator.api.create(waiting)
        await operator.reconcile("ppo")
        status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
        suspended = next(c for c in status["conditions"] if c["type"] == "Suspended")
        assert (suspended["status"], suspended["reason"]) == ("True", "RuntimeNotFound")
        assert suspended["message"].startswith(f"waiting for {kind} {name}: ")
        assert "not found" in suspended["message"]
        assert not await operator.names("Pod")

        await asyncio.to_thread(on_server, "create")
        await operator.reconcile("ppo")
        pods = {pod["metadata"]["name"]: pod["spec"] async for pod in operator.api.list("Pod", namespace)}
        assert {container["image"] for pod in pods.values() for container in pod["containers"]} == {"admin:1"}
        assert all(spec["pods"]["tolerations"][0] in pod["tolerations"] for pod in pods.values())
        chosen = {pod for pod, made in pods.items() if made.get("nodeSelector")}
        assert chosen == {"ppo-trainer-0"}
        status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
        assert status["runtime"] == {"kind": kind, "name": name, "generation": 1}
        await asyncio.to_thread(on_server, "delete")

    operators(body)
