"""The verbs on a cluster that knows no RLHFJob: one of its own, since other tests define it in theirs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api_server.oldest.jobs import ROOT
from tests.cluster.packages import Unavailable
from tests.support.kubernetes.cluster import Cluster, control_plane
from tests.unit.operator.verbs.command import Verbs

SFT = ROOT / "examples" / "sentiment" / "sft.yaml"


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        with control_plane(tmp_path / "bare") as plane:
            yield plane
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_a_cluster_without_the_operator(bare_cluster: Cluster, tmp_path: Path) -> None:
    verbs = Verbs(bare_cluster.kubeconfig, "default", tmp_path)
    for arguments in (["status"], ["status", "ppo"], ["suspend", "ppo"], ["submit", str(SFT)]):
        done = verbs.run(*arguments)
        assert done.code == 1
        assert "does not know RLHFJob (rlhf.dev/v1alpha1): install the operator, by `helm install" in done.err
        assert done.err.count("\n") == 1
