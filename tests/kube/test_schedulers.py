"""Gangs and queues: the objects that their schedulers read, and what their answers do to a job."""

import json
from collections.abc import Iterator

import pytest
from tests.kube.jobs import ADDRESS, PODS, ppo
from tests.kube.schedulers import ALL
from tests.support.cluster import Cluster
from tests.support.fake_nodes import FakeNodes
from tests.support.kube import eventually, kubectl
from tests.support.operator import Jobs, TalkingTrainer, operator, talking_trainer

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
    with FakeNodes(control_plane, address=ADDRESS) as made:
        yield made


@pytest.fixture(scope="module")
def trainer() -> Iterator[TalkingTrainer]:
    with talking_trainer(ADDRESS) as talking:
        yield talking


@pytest.fixture(scope="module")
def served(
    control_plane: Cluster,
    crd: None,
    definitions: None,
    nodes: FakeNodes,
    trainer: TalkingTrainer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    del crd, definitions, nodes, trainer
    with operator(control_plane.kubeconfig, tmp_path_factory.mktemp("operator")):
        yield


@pytest.fixture
def jobs(control_plane: Cluster, namespace: str) -> Jobs:
    return Jobs(control_plane.kubeconfig, namespace)


@pytest.mark.parametrize(
    ("gang", "kind", "spec"),
    [
        ({"gang": "volcano", "queue": "research"}, "podgroups.scheduling.volcano.sh", {"queue": "research"}),
        ({"gang": "coscheduling"}, "podgroups.scheduling.x-k8s.io", {}),
    ],
)
def test_a_gang_is_as_large_as_the_job(jobs, gang, kind, spec):
    jobs.apply(ppo(scheduling=gang))
    jobs.until_pods(4)
    assert jobs.get(kind, "ppo")["spec"] == {"minMember": 4, **spec}
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=2")
    eventually(lambda: jobs.get(kind, "ppo")["spec"]["minMember"] == 5, "the group grows")
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=1")
    eventually(lambda: jobs.get(kind, "ppo")["spec"]["minMember"] == 4, "the group shrinks")


def queued() -> dict:
    document = ppo()
    document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    return document


def answer(jobs: Jobs, **conditions: bool) -> None:
    """As Kueue does."""
    made = [
        {"type": kind, "status": str(holds), "reason": "Test", "message": "", "lastTransitionTime": None}
        for kind, holds in conditions.items()
    ]
    patch = json.dumps({"status": {"conditions": made}})
    jobs.kubectl("patch", "workload", "ppo", "--subresource=status", "--type=merge", "-p", patch)


def test_a_queued_job_runs_while_it_is_admitted(jobs, nodes, trainer):
    jobs.apply(queued())
    jobs.until("ppo", "Suspended")
    assert jobs.reason("ppo", "Suspended") == "WaitingForQuota"
    assert "research" in jobs.status("ppo")["message"]
    workload = eventually(lambda: jobs.get("workload", "ppo"), "the Workload")
    assert workload["spec"]["queueName"] == "research"
    assert {s["name"]: s["count"] for s in workload["spec"]["podSets"]} == {
        "trainer": 1,
        "generator": 1,
        "reward": 1,
        "reference": 1,
    }
    assert not jobs.pods()

    answer(jobs, Admitted=True)
    jobs.until("ppo", "Running")
    assert set(jobs.pods()) == PODS

    answer(jobs, Admitted=True, Evicted=True)
    eventually(lambda: "/v1/stop" in trainer.asked, "the trainer saves a checkpoint first")
    nodes.end(jobs.namespace, "ppo-trainer-0", 79)
    jobs.until("ppo", "Suspended")
    jobs.until_pods(0)
    uid = workload["metadata"]["uid"]
    eventually(lambda: jobs.get("workload", "ppo")["metadata"]["uid"] != uid, "the job lines up anew")
    answer(jobs, Admitted=True)
    jobs.until("ppo", "Running")

    nodes.end(jobs.namespace, "ppo-trainer-0", 0)
    jobs.until("ppo", "Succeeded")
    eventually(lambda: not jobs.get("workloads")["items"], "the quota is given back")
