"""A node falls silent: Kubernetes' own node controller finds it out, the job says so, and the pod goes though it
tolerates everything."""

import datetime
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.api_server.oldest.jobs import ppo
from tests.api_server.oldest.stepped_operator import Operators, SteppedOperator
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.kube import eventually, get, kubectl

from rlhf_operator.cluster.act import pod_client

pytestmark = pytest.mark.usefixtures("crd")
POD = "ppo-generator-0"


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def report(cluster: Cluster, *what: str, **status: Any) -> None:
    """Writes a status, as a kubelet does."""
    patch = json.dumps({"status": status})
    kubectl(cluster.kubeconfig, "patch", *what, "--subresource=status", "--type=strategic", "-p", patch)


def heartbeat(cluster: Cluster, node: str) -> None:
    report(
        cluster, "node", node, conditions=[{"type": "Ready", "status": "True", "lastHeartbeatTime": now()}]
    )


@pytest.fixture
def nodes(control_plane: Cluster, namespace: str) -> Iterator[tuple[str, str]]:
    """Two nodes of paper, one of which falls silent: where all are silent, Kubernetes evicts nothing."""
    names = f"silent-{namespace}", f"other-{namespace}"
    for name in names:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        kubectl(control_plane.kubeconfig, "create", "-f", "-", input=json.dumps(node))
        heartbeat(control_plane, name)
    yield names
    kubectl(control_plane.kubeconfig, "delete", "node", *names)


def test_a_silent_node_is_told_of_and_loses_a_pod_that_tolerates_everything(
    control_plane: Cluster,
    operators: Operators,
    namespace: str,
    nodes: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_client, "EVICTION_SECONDS", 1)
    silent, other = nodes
    pod = partial(get, control_plane.kubeconfig, "pod", POD, "-n", namespace)

    async def start(operator: SteppedOperator) -> None:
        job = ppo(pods={"tolerations": [{"operator": "Exists"}]})
        await operator.api.create({**job, "metadata": {"name": "ppo", "namespace": namespace}})
        await operator.reconcile("ppo")
        await operator.bind(POD, silent)

    operators(start)
    container = {
        "name": "role",
        "image": "i",
        "imageID": "",
        "ready": True,
        "started": True,
        "restartCount": 0,
    }
    report(
        control_plane,
        *("pod", POD, "-n", namespace),
        phase="Running",
        conditions=[{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")],
        containerStatuses=[{**container, "state": {"running": {"startedAt": now()}}}],
    )

    def evicted() -> dict[str, Any] | None:
        heartbeat(control_plane, other)
        current: dict[str, Any] = pod()
        return current if "deletionTimestamp" in current["metadata"] else None

    left = eventually(evicted, "Kubernetes deletes the pod", timeout=150)
    assert [c["status"] for c in left["status"]["conditions"] if c["type"] == "Ready"] == ["False"]

    async def scenario(operator: SteppedOperator) -> None:
        await operator.reconcile("ppo")
        status = (await operator.api.get("RLHFJob", namespace, "ppo"))["status"]
        conditions = {c["type"]: c for c in status["conditions"]}
        message = f"{POD}: NodeUnreachable: its node {silent} has stopped reporting"
        assert (conditions["Stalled"]["reason"], conditions["Stalled"]["message"]) == (
            "NodeUnreachable",
            message,
        )
        assert conditions["RolesReady"]["reason"] == "NodeUnreachable"
        assert message in conditions["RolesReady"]["message"]

    operators(scenario)
