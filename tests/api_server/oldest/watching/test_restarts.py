"""The operator dies, stands by, stops: jobs and their pods notice nothing."""

import pytest
from tests.api_server.oldest.jobs import PPO
from tests.support.kubernetes.kube import eventually, kubectl
from tests.support.kubernetes.operator import operator

pytestmark = pytest.mark.usefixtures("crd", "talking")


def test_a_restarted_operator_touches_no_pod(jobs, talking, tmp_path):
    with operator(jobs.kubeconfig, tmp_path / "first", jobs.namespace) as first:
        jobs.apply(PPO)
        jobs.until("ppo", "Running")
        before, status = jobs.pods(), jobs.status("ppo")
        first.kill()
    talking.status["step"] = 9
    with operator(jobs.kubeconfig, tmp_path / "second", jobs.namespace):
        eventually(lambda: jobs.status("ppo")["step"] == 9, "the second operator is at work")
        assert jobs.pods() == before
        assert jobs.status("ppo")["startTime"] == status["startTime"]


def test_a_standby_takes_over_within_15_seconds_of_a_kill(jobs, talking, tmp_path):
    with operator(jobs.kubeconfig, tmp_path / "first", jobs.namespace) as first:
        jobs.apply(PPO)
        jobs.until("ppo", "Running")
        with operator(jobs.kubeconfig, tmp_path / "second", jobs.namespace) as second:
            eventually(lambda: "standing by" in second.read_log(), "the second is up")
            talking.status["step"] = 11
            eventually(lambda: jobs.status("ppo")["step"] == 11, "the first still leads")
            first.kill()
            talking.status["step"] = 12
            eventually(lambda: jobs.status("ppo")["step"] == 12, "the second leads")


def test_it_stops_cleanly_and_lets_go_of_its_lease(jobs, tmp_path):
    with operator(jobs.kubeconfig, tmp_path / "only", jobs.namespace) as running:
        lease = (
            "get",
            "lease",
            "rlhf-operator",
            "-n",
            jobs.namespace,
            "-o",
            "jsonpath={.spec.holderIdentity}",
        )
        eventually(lambda: kubectl(jobs.kubeconfig, *lease).startswith("only_"), "it leads")
        assert running.stop() == 0
        assert kubectl(jobs.kubeconfig, *lease) == ""
        assert "OS signals" not in running.read_log(), (
            "kopf's thread has none, and the operator stopped by one"
        )
