"""Pods on the node's network, as a real API server takes them and the scheduler would read them."""

import pytest
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator, job

pytestmark = pytest.mark.usefixtures("crd")
HOST_NETWORK = {"template": {"spec": {"hostNetwork": True}}}


def test_the_server_declares_every_port_as_one_of_the_node(operators: Operators, namespace: str) -> None:
    async def body(operator: SteppedOperator) -> None:
        for name in ("one", "two"):
            made = job(namespace, name)
            await operator.api.create({**made, "spec": {**made["spec"], "pods": HOST_NETWORK}})
            await operator.reconcile(name)
        pods = [pod async for pod in operator.api.list("Pod", namespace, labels="rlhf.dev/job")]
        ports = [port for pod in pods for port in pod["spec"]["containers"][0]["ports"]]
        assert [port["hostPort"] for port in ports] == [port["containerPort"] for port in ports]
        assert len({port["hostPort"] for port in ports}) == len(ports) == len(pods) + 2

    operators(body)
