"""The API server is gone, refuses or cuts its watches: the operator catches up, and no pod is made twice."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api_server.oldest.jobs import PODS, ppo
from tests.support.kubernetes.cluster import Cluster, ControlPlane
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs, operator
from tests.support.servers.proxy import Proxy, proxied

from rlhf_operator.cluster.__main__ import EXIT_FAILED

OUTAGE_SECONDS = 30


pytestmark = pytest.mark.usefixtures("crd", "talking")


@pytest.fixture
def proxy(control_plane: Cluster, jobs: Jobs, tmp_path: Path) -> Iterator[Proxy]:
    """An operator behind a proxy; a storm may keep it from its lease."""
    with (
        proxied(control_plane, tmp_path) as (made, kubeconfig),
        operator(kubeconfig, tmp_path / "operator", jobs.namespace, deployed=True),
    ):
        yield made


def named(name: str) -> dict:
    document = ppo()
    document["metadata"]["name"] = name
    return document


def made_pods(proxy: Proxy, jobs: Jobs) -> int:
    return proxy.requests.count(f"POST /api/v1/namespaces/{jobs.namespace}/pods")


def test_watches_that_are_cut_lose_nothing(jobs, proxy):
    jobs.apply(named("before"))
    jobs.until("before", "Running")
    assert proxy.cut_watches() >= 2
    jobs.apply(named("after"))
    jobs.until("after", "Running")
    assert made_pods(proxy, jobs) == 2 * len(PODS)


@pytest.mark.parametrize("status", [409, 429, 503])
def test_storms_of_refusals_pass(jobs, proxy, status):
    jobs.apply(named("calm"))
    jobs.until("calm", "Running")
    before = jobs.pods()
    proxy.storm(status, of=3)
    for i in range(3):
        jobs.apply(named(f"storm-{i}"))
    eventually(lambda: proxy.refused > 10, "the storm is on")
    proxy.calm()
    for i in range(3):
        jobs.until(f"storm-{i}", "Running")
    after = jobs.pods()
    assert len(after) == 4 * len(PODS)
    assert {name: uid for name, uid in after.items() if name in before} == before


def test_an_api_server_that_is_gone_for_half_a_minute(
    own_control_plane: ControlPlane, jobs, talking, tmp_path
):
    """The operator's lease runs out meanwhile: it stops working, comes back as a new process, and goes on."""
    with operator(jobs.kubeconfig, tmp_path / "first", jobs.namespace):
        jobs.apply(named("early"))
        jobs.until("early", "Running")
        before = jobs.pods()
        own_control_plane.stop_apiserver()
        time.sleep(OUTAGE_SECONDS)
        own_control_plane.start_apiserver()
        with operator(jobs.kubeconfig, tmp_path / "second", jobs.namespace):  # as its Deployment would
            talking.status["step"] = 21
            jobs.apply(named("late"))
            jobs.until("late", "Running")
            eventually(lambda: jobs.status("early")["step"] == 21, "the old job is looked after")
            after = jobs.pods()
            assert {name: uid for name, uid in after.items() if name in before} == before
            assert len(after) == 2 * len(PODS)


def test_an_api_server_that_answers_nobody(own_control_plane: ControlPlane, jobs, talking, tmp_path):
    """The operator ends before its lease does; the one that is started after it goes on with the same pods."""
    with operator(jobs.kubeconfig, tmp_path / "first", jobs.namespace) as first:
        jobs.apply(named("held"))
        jobs.until("held", "Running")
        before = jobs.pods()
        own_control_plane.signal_apiserver(signal.SIGSTOP)
        try:
            assert first.process.wait(60) == EXIT_FAILED
        finally:
            own_control_plane.signal_apiserver(signal.SIGCONT)
    own_control_plane.wait_ready()
    talking.status["step"] = 31
    with operator(jobs.kubeconfig, tmp_path / "second", jobs.namespace):
        eventually(lambda: jobs.status("held")["step"] == 31, "the job is looked after")
    assert jobs.pods() == before
