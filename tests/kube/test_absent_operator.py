"""The verbs on a cluster that knows no RLHFJob. First of all tests: once our kinds are defined they stay."""

from pathlib import Path

import pytest
from tests.kube.jobs import ROOT
from tests.support.cluster import Cluster, existing
from tests.support.kube import kubectl
from tests.verbs.command import Verbs

SFT = ROOT / "examples" / "sentiment" / "sft.yaml"


def test_a_cluster_without_the_operator(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    if kubectl(control_plane.kubeconfig, "get", "crd", "rlhfjobs.rlhf.dev", "--ignore-not-found"):
        assert existing(), "another test has defined our kinds before"
        pytest.skip("RLHFJob is installed here")
    verbs = Verbs(control_plane.kubeconfig, namespace, tmp_path)
    for arguments in (["status"], ["status", "ppo"], ["suspend", "ppo"], ["submit", str(SFT)]):
        done = verbs.run(*arguments)
        assert done.code == 1
        assert "does not know RLHFJob (rlhf.dev/v1alpha1): install the operator, by `helm install" in done.err
        assert done.err.count("\n") == 1
