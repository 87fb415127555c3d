"""A generator over several pods lives and dies as one: operator and API server are real, the nodes exist on paper."""

from collections.abc import Callable, Iterator

import pytest
from tests.api_server.oldest.jobs import ppo
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.fake_nodes import FakeNodes
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs, TalkingTrainer, operator

pytestmark = pytest.mark.usefixtures("crd")
FIRST, SECOND = ("ppo-generator-0", "ppo-generator-0-1"), ("ppo-generator-1", "ppo-generator-1-1")
PAIRS = {"replicas": 2, "tensorParallelSize": 2, "podsPerReplica": 2}


@pytest.fixture
def jobs(
    control_plane: Cluster, namespace: str, nodes: FakeNodes, talking: TalkingTrainer, tmp_path
) -> Iterator[Jobs]:
    """With a job that runs, of two generators with two pods each."""
    assert nodes
    assert talking
    with operator(control_plane.kubeconfig, tmp_path / "operator", namespace, deployed=True):
        made = Jobs(control_plane.kubeconfig, namespace)
        made.apply(ppo(generator=PAIRS))
        made.until("ppo", "Running")
        eventually(
            lambda: made.status("ppo")["roles"]["generator"]["ready"] == 2, "both generators are ready"
        )
        yield made


def fails(jobs: Jobs, nodes: FakeNodes, pod: str) -> None:
    nodes.end(jobs.namespace, pod, 1, "torch.OutOfMemoryError: CUDA out of memory")


def is_deleted(jobs: Jobs, _nodes: FakeNodes, pod: str) -> None:
    jobs.kubectl("delete", "pod", pod, "--wait=false")


@pytest.mark.parametrize(
    ("happens", "pod", "restarts"),
    [(fails, FIRST[0], 1), (fails, FIRST[1], 1), (is_deleted, FIRST[0], 0), (is_deleted, FIRST[1], 0)],
    ids=["rank 0 fails", "rank 1 fails", "rank 0 is deleted", "rank 1 is deleted"],
)
def test_the_end_of_one_pod_is_the_end_of_its_generator_and_of_no_other_pod(
    jobs: Jobs,
    talking: TalkingTrainer,
    nodes: FakeNodes,
    happens: Callable[[Jobs, FakeNodes, str], None],
    pod: str,
    restarts: int,
) -> None:
    before = jobs.pods()
    happens(jobs, nodes, pod)
    again = eventually(
        lambda: (
            current
            if len(current := jobs.pods()) == len(before) and current != before and anew(current, before)
            else None
        ),
        "both pods are made again",
    )
    assert {name for name in before if again[name] != before[name]} == {*FIRST}
    eventually(
        lambda: jobs.status("ppo")["roles"]["generator"]["ready"] == 2, "both generators are ready again"
    )
    assert jobs.status("ppo")["roles"]["generator"]["restarts"] == restarts
    members = eventually(lambda: served(talking, again), "the trainer knows the new one")
    assert members == {"generator-0": again[FIRST[0]], "generator-1": before[SECOND[0]]}
    assert jobs.pods() == again


def anew(pods: dict[str, str], before: dict[str, str]) -> bool:
    return all(pods.get(name, before[name]) != before[name] for name in FIRST)


def served(talking: TalkingTrainer, pods: dict[str, str]) -> dict[str, str] | None:
    """Uids by name of the generators that the trainer was told of, once that is of these pods."""
    known = {each["name"]: each["uid"] for each in talking.members if each["role"] == "generator"}
    return known if known.get("generator-0") == pods[FIRST[0]] else None
