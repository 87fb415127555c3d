"""Gangs and queues: the objects that their schedulers read, and what their answers do to a job."""

import json
from collections.abc import Iterator

import pytest
from tests.api_server.oldest.jobs import ADDRESS, PODS, ppo
from tests.api_server.oldest.schedulers import ALL
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.fake_nodes import FakeNodes
from tests.support.kubernetes.kube import eventually, kubectl
from tests.support.kubernetes.operator import Jobs, Operator, TalkingTrainer

pytestmark = pytest.mark.usefixtures("crd", "served")


@pytest.fixture(scope="module")
def definitions(control_plane: Cluster) -> Iterator[None]:
    for definition in ALL:
        kubectl(control_plane.kubeconfig, "create", "-f", "-", input=json.dumps(definition))
    for definition in ALL:
        spec = definition["spec"]
        served = f"--raw=/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        eventually(lambda served=served: kubectl(control_plane.kubeconfig, "get", served), served)
    yield
    for definition in ALL:
        kubectl(control_plane.kubeconfig, "delete", "crd", definition["metadata"]["name"])


@pytest.fixture(scope="module")
def nodes(control_plane: Cluster) -> Iterator[FakeNodes]:
    with FakeNodes(control_plane, address=ADDRESS, accelerator="h100", pool="made-for-it", rack="r1") as made:
        yield made


@pytest.fixture(scope="module")
def served(definitions: None, talking: TalkingTrainer, served: Operator) -> Operator:
    """It has begun where the schedulers' definitions are."""
    assert definitions is None
    assert talking
    return served


@pytest.mark.parametrize(
    ("gang", "kind", "spec"),
    [
        (
            {"gang": "volcano", "queue": "research"},
            "podgroups.scheduling.volcano.sh",
            {"queue": "research", "minResources": {"cpu": "200m"}},
        ),
        ({"gang": "coscheduling"}, "podgroups.scheduling.x-k8s.io", {}),
    ],
)
def test_a_gang_is_as_large_as_the_job(jobs, gang, kind, spec):
    jobs.apply(ppo(scheduling=gang, pods={"resources": {"requests": {"cpu": "50m"}}}))
    jobs.until_pods(4)
    assert jobs.get(kind, "ppo")["spec"] == {"minMember": 4, **spec}
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=2")
    eventually(lambda: jobs.get(kind, "ppo")["spec"]["minMember"] == 5, "the group grows")
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=1")
    eventually(lambda: jobs.get(kind, "ppo")["spec"]["minMember"] == 4, "the group shrinks")


def queued(**labels: str) -> dict:
    document = ppo()
    document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research", **labels}
    return document


GPU = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture
def of_kueue(control_plane: Cluster) -> Iterator[None]:
    """A flavor and a priority, as the cluster's administrators make them."""
    version = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    flavor = {"kind": "ResourceFlavor", "metadata": {"name": "h100"}, **version}
    flavor["spec"] = {"nodeLabels": {"accelerator": "h100"}, "tolerations": [GPU]}
    priority = {"kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}, **version, "value": 1000}
    for body in (flavor, priority):
        kubectl(control_plane.kubeconfig, "create", "-f", "-", input=json.dumps(body))
    yield
    kubectl(control_plane.kubeconfig, "delete", "resourceflavor/h100", "workloadpriorityclass/urgent")


def answer(jobs: Jobs, reason: str = "Test", status: dict | None = None, **conditions: bool) -> None:
    """As Kueue does: the conditions that are named, the others stay."""
    before = {c["type"]: c for c in jobs.get("workload", "ppo").get("status", {}).get("conditions", ())}
    made = {
        kind: {
            "type": kind,
            "status": str(holds),
            "reason": reason,
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, holds in conditions.items()
    }
    patch = json.dumps({"status": {"conditions": list({**before, **made}.values()), **(status or {})}})
    jobs.kubectl("patch", "workload", "ppo", "--subresource=status", "--type=merge", "-p", patch)


def holds(jobs: Jobs, condition: str) -> bool | None:
    """None where the Workload has no such condition."""
    conditions = jobs.get("workload", "ppo").get("status", {}).get("conditions", ())
    return next((c["status"] == "True" for c in conditions if c["type"] == condition), None)


def counts(jobs: Jobs) -> dict[str, int]:
    return {s["name"]: s["count"] for s in jobs.get("workload", "ppo")["spec"]["podSets"]}


@pytest.mark.usefixtures("of_kueue")
def test_a_queued_job_runs_while_it_is_admitted(jobs, nodes, talking):
    jobs.apply(queued(**{"kueue.x-k8s.io/priority-class": "urgent"}))
    jobs.until("ppo", "Suspended")
    assert jobs.reason("ppo", "Suspended") == "WaitingForQuota"
    assert "research" in jobs.status("ppo")["message"]
    workload = eventually(lambda: jobs.get("workload", "ppo"), "the Workload")
    assert workload["spec"]["queueName"] == "research"
    assert (workload["spec"]["priority"], workload["spec"]["priorityClassRef"]["name"]) == (1000, "urgent")
    assert counts(jobs) == {"trainer": 1, "generator": 1, "reward": 1, "reference": 1}
    assert not jobs.pods()
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=2")
    eventually(lambda: counts(jobs)["generator"] == 2, "what waits is changed in place")

    racks = {
        "levels": ["rack"],
        "slices": [
            {"domainCount": 1, "valuesPerLevel": [{"universal": "r1"}], "podCounts": {"universal": 1}}
        ],
    }
    flavors = {"nvidia.com/gpu": "h100"}
    assigned = {"name": "trainer", "count": 1, "flavors": flavors, "topologyAssignment": racks}
    update = {"name": "generator", "nodeSelector": {"pool": "made-for-it"}}
    answered = {
        "admission": {"clusterQueue": "all", "podSetAssignments": [assigned]},
        "admissionChecks": [{"name": "provision", "state": "Ready", "podSetUpdates": [update]}],
    }
    answer(jobs, QuotaReserved=True, Admitted=True, status=answered)
    jobs.until("ppo", "Running")
    assert set(jobs.pods()) == PODS | {"ppo-generator-1"}
    nodes_of = {name: jobs.get("pod", name)["spec"].get("nodeSelector") for name in jobs.pods()}
    assert nodes_of["ppo-trainer-0"] == {"accelerator": "h100", "rack": "r1"}
    assert GPU in jobs.get("pod", "ppo-trainer-0")["spec"]["tolerations"]
    assert nodes_of["ppo-generator-0"] == nodes_of["ppo-generator-1"] == {"pool": "made-for-it"}
    assert nodes_of["ppo-reward-0"] is None
    marks = jobs.get("pod", "ppo-trainer-0")["metadata"]
    assert marks["annotations"]["kueue.x-k8s.io/workload"] == "ppo"
    assert marks["annotations"]["kueue.x-k8s.io/podset-unconstrained-topology"] == "true"
    assert marks["labels"]["kueue.x-k8s.io/podset"] == "trainer"
    eventually(lambda: holds(jobs, "PodsReady"), "Kueue hears that all pods are ready")
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=1")
    free = [{"name": "generator", "count": 1}]
    eventually(
        lambda: jobs.get("workload", "ppo")["status"].get("reclaimablePods") == free, "one is given back"
    )
    jobs.until("ppo", "Running")

    answer(jobs, "Preempted", {"requeueState": {"count": 3}}, Evicted=True)
    eventually(lambda: "/v1/stop" in talking.asked, "the trainer saves a checkpoint first")
    nodes.end(jobs.namespace, "ppo-trainer-0", 79)
    jobs.until("ppo", "Suspended")
    jobs.until_pods(0)
    eventually(lambda: holds(jobs, "QuotaReserved") is False, "the quota is given back")
    requeued = jobs.get("workload", "ppo")
    assert requeued["metadata"]["uid"] == workload["metadata"]["uid"], "its place in the queue is kept"
    assert (requeued["status"]["requeueState"], "admission" in requeued["status"]) == ({"count": 3}, False)
    assert (holds(jobs, "Admitted"), holds(jobs, "Requeued")) == (False, True)
    jobs.kubectl("patch", "workload", "ppo", "--type=merge", "-p", '{"spec": {"active": false}}')
    eventually(lambda: jobs.reason("ppo", "Suspended") == "Deactivated", "a deactivated job stays so")
    assert not jobs.pods()
    jobs.kubectl("patch", "workload", "ppo", "--type=merge", "-p", '{"spec": {"active": true}}')
    answer(jobs, QuotaReserved=True, Admitted=True, Evicted=False)
    jobs.until("ppo", "Running")

    talking.asked.clear()
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=50")
    eventually(lambda: "/v1/stop" in talking.asked, "more than was admitted: the job lines up anew")
    assert len(jobs.pods()) < 10
    nodes.end(jobs.namespace, "ppo-trainer-0", 79)
    eventually(lambda: counts(jobs)["generator"] == 50, "it asks for 50")
    jobs.until_pods(0)
    jobs.kubectl("label", "rlhfjob", "ppo", "--overwrite", "kueue.x-k8s.io/queue-name=other")
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=1")
    eventually(
        lambda: jobs.get("workload", "ppo")["spec"]["queueName"] == "other", "it waits in another queue"
    )
    answer(jobs, QuotaReserved=True, Admitted=True)
    jobs.until("ppo", "Running")

    nodes.end(jobs.namespace, "ppo-trainer-0", 0)
    jobs.until("ppo", "Succeeded")
    eventually(lambda: not jobs.get("workloads")["items"], "the quota is given back")
