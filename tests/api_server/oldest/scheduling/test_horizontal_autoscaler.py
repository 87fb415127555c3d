"""Kubernetes' own HorizontalPodAutoscaler sets the number of generators, by the job's `scale` subresource."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.api_server.oldest.jobs import ADDRESS, PODS, ppo
from tests.support.kubernetes.cluster import ControlPlane
from tests.support.kubernetes.fake_nodes import FakeNodes
from tests.support.kubernetes.kube import eventually, kubectl
from tests.support.kubernetes.operator import Jobs, Operator, TalkingTrainer, operator, talking_trainer
from tests.support.servers.external_metrics import external_metrics, generating

pytestmark = pytest.mark.usefixtures("crd")
PATIENCE_S = 180
"""The controller learns of a new kind every 30 s."""
AUTOSCALER = """
apiVersion: autoscaling/v2beta2
kind: HorizontalPodAutoscaler
metadata: {name: generators}
spec:
  scaleTargetRef: {apiVersion: rlhf.dev/v1alpha1, kind: RLHFJob, name: ppo}
  minReplicas: 2
  maxReplicas: 4
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  metrics:
    - type: External
      external:
        metric: {name: rlhf_generating, selector: {matchLabels: {rlhfjob: ppo}}}
        target: {type: Value, value: 800m}
"""


@pytest.fixture
def trainer(own_control_plane: ControlPlane) -> Iterator[TalkingTrainer]:
    with FakeNodes(own_control_plane, address=ADDRESS), talking_trainer() as talking:
        yield talking


@pytest.fixture
def working(own_control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    with operator(own_control_plane.kubeconfig, tmp_path / "operator", namespace, deployed=True) as working:
        yield working


def test_generators_follow_a_horizontal_pod_autoscaler(
    own_control_plane: ControlPlane, namespace: str, trainer: TalkingTrainer, working: Operator
) -> None:
    """First by its bounds, without any metric; then by what the operator says of the job: up where generators have
    requests all the time, down where they mostly have none."""
    jobs = Jobs(own_control_plane.kubeconfig, namespace)
    trainer.status["generatorIdle"] = 0.0
    jobs.apply(ppo())
    jobs.until("ppo", "Running")
    before = jobs.pods()
    jobs.apply(yaml.safe_load(AUTOSCALER))
    until_generators(jobs, 2)
    eventually(lambda: scaling(jobs) == "FailedGetExternalMetric", "it has no metric", PATIENCE_S)

    page = f"http://127.0.0.1:{working.metrics_port}/metrics"

    def read_idle(of: str) -> float | None:
        with urllib.request.urlopen(page, timeout=10) as answer:
            return generating(answer.read().decode(), of, "ppo")

    with external_metrics(jobs.kubeconfig, own_control_plane.folder / "files", read_idle):
        until_generators(jobs, 4)
        trainer.status["generatorIdle"] = 0.9
        until_generators(jobs, 2)
        assert scaling(jobs) == "ValidMetricFound"
    assert before.keys() == PODS
    assert before.items() <= jobs.pods().items(), "who was there stays"


def until_generators(jobs: Jobs, count: int) -> None:
    """They are there, and the `scale` says so."""
    jobs.until_pods(len(PODS) - 1 + count, PATIENCE_S)
    eventually(lambda: jobs.status("ppo")["generatorReplicas"] == count, "the scale status")


def scaling(jobs: Jobs) -> str:
    """The reason of the autoscaler's condition `ScalingActive`."""
    path = f"/apis/autoscaling/v2beta2/namespaces/{jobs.namespace}/horizontalpodautoscalers/generators"
    conditions = json.loads(kubectl(jobs.kubeconfig, "get", "--raw", path))["status"].get("conditions", ())
    return next((each["reason"] for each in conditions if each["type"] == "ScalingActive"), "")
