"""`rlhf logs` and `rlhf status --watch` through a real API server; kubelet and operator are these tests."""

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes.cluster import Cluster, ControlPlane
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs
from tests.unit.api.manifests import document
from tests.unit.operator.verbs.command import Verbs
from tests.unit.operator.verbs.kubelet import Kubelet, kubelet

from rlhf_operator.job.names import INDEX, JOB, ROLE

pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture(scope="module")
def node(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("brings a kubelet of its own: unset RLHF_TEST_KUBECONFIG to run it")
    name = f"logs-{uuid.uuid4().hex[:8]}"
    with kubelet(control_plane.kubeconfig, tmp_path_factory.mktemp("kubelet"), name) as made:
        yield made


@pytest.fixture
def jobs(control_plane: Cluster, namespace: str) -> Jobs:
    made = Jobs(control_plane.kubeconfig, namespace)
    made.apply(document("metadata.name=ppo"))
    phase(made, "Running")
    return made


@pytest.fixture
def verbs(control_plane: Cluster, namespace: str, tmp_path: Path) -> Verbs:
    return Verbs(control_plane.kubeconfig, namespace, tmp_path)


def phase(jobs: Jobs, name: str, step: int = 0) -> None:
    patch_status(jobs, "rlhfjob", "ppo", {"phase": name, "step": step, "totalSteps": 4})


def patch_status(jobs: Jobs, kind: str, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    jobs.kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)


def pod(jobs: Jobs, node: Kubelet, role: str, index: int, *lines: str) -> str:
    """A pod of the job runs on the node, and has printed these lines."""
    name = f"ppo-{role}-{index}"
    node.again(name)
    node.write(name, *lines)
    labels = {JOB: "ppo", ROLE: role, INDEX: str(index)}
    container = {"name": "role", "image": "x"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node.node, "restartPolicy": "Never", "containers": [container]},
    }
    jobs.kubectl("create", "-f", "-", input=json.dumps(body))
    state(jobs, name, "running")
    return name


def state(jobs: Jobs, name: str, kind: str) -> None:
    details = {"running": {"startedAt": "2026-01-01T00:00:00Z"}, "terminated": {"exitCode": 0}}[kind]
    container = {
        "name": "role", "image": "x", "imageID": "x", "restartCount": 0, "ready": False, "state": {kind: details},
    }  # fmt: skip
    patch_status(jobs, "pod", name, {"containerStatuses": [container]})


def end(jobs: Jobs, node: Kubelet, name: str) -> None:
    node.end(name)
    state(jobs, name, "terminated")


def test_logs_of_the_roles_pods_in_order_with_their_names(jobs: Jobs, node: Kubelet, verbs: Verbs) -> None:
    hint = "logs of pods that are gone are where the cluster keeps them, by the label rlhf.dev/job=ppo"
    none = f"error: ppo has no trainer pod with a log now (Running); {hint}\n"
    assert verbs.run("logs", "ppo").err == none
    pod(jobs, node, "generator", 10, "ten")
    pod(jobs, node, "generator", 2, "one", " 50%|#  \r100%|###", "")
    pod(jobs, node, "trainer", 0, "step 1", "step 2", "step 3")
    assert verbs.run("logs", "ppo").out == "trainer-0 | step 1\ntrainer-0 | step 2\ntrainer-0 | step 3\n"
    assert verbs.run("logs", "ppo", "--role=all", "--tail=1").out == (
        "trainer-0 | step 3\ngenerator-2 | \ngenerator-10 | ten\n"
    )
    assert verbs.run("logs", "ppo", "--role=generator", "--index=2").out == (
        "generator-2 | one\ngenerator-2 | 100%|###\ngenerator-2 | \n"
    )
    assert verbs.run("logs", "ppo", "--role=generator", "--index=3").err == (
        f"error: ppo has no generator pod of index 3 with a log now (Running); {hint}\n"
    )


def test_every_line_once_through_cuts_and_replaced_pods_until_the_job_is_over(
    jobs: Jobs, node: Kubelet, verbs: Verbs
) -> None:
    trainers = [pod(jobs, node, "trainer", i, "first", "second") for i in range(2)]
    with verbs.start("logs", "ppo", "-f", "--tail=1") as follow:
        for i in range(2):
            follow.until(f"trainer-{i} | second")
        node.cut()
        count = len(node.queries)
        node.write(trainers[0], "while nobody listened")
        follow.until("trainer-0 | while nobody listened")
        assert all("sinceTime" in query for query in node.queries[count:])
        # A pod fails, and another one has taken its name by the time at which the reader looks again.
        follow.process.send_signal(signal.SIGSTOP)
        end(jobs, node, trainers[1])
        jobs.kubectl("delete", "pod", trainers[1], "--grace-period=0", "--force")
        eventually(lambda: trainers[1] not in jobs.pods(), "the old pod is gone")
        node.cut()
        pod(jobs, node, "trainer", 1, "once", "again", "and again")
        follow.process.send_signal(signal.SIGCONT)
        follow.until("trainer-1 | and again")
        for name in trainers:
            node.write(name, "last words")
            end(jobs, node, name)
        phase(jobs, "Succeeded")
        done = follow.end()
    assert done.code == 0
    assert done.err == ""
    of = {i: [line for line in done.out.splitlines() if line.startswith(f"trainer-{i}")] for i in range(2)}
    assert of[0] == [f"trainer-0 | {text}" for text in ("second", "while nobody listened", "last words")]
    assert of[1] == [f"trainer-1 | {text}" for text in ("second", "once", "again", "and again", "last words")]


def test_following_waits_for_pods_and_says_why_there_are_none(
    jobs: Jobs, node: Kubelet, verbs: Verbs
) -> None:
    phase(jobs, "Suspended")
    with verbs.start("logs", "ppo", "-f") as follow:
        follow.until("ppo has no trainer pod with a log now (Suspended); waiting for one\n")
        name = pod(jobs, node, "trainer", 0, "resumed")
        follow.until("trainer-0 | resumed")
        end(jobs, node, name)
        phase(jobs, "Failed")
        assert follow.end().code == 0


def test_following_a_job_that_is_deleted(jobs: Jobs, node: Kubelet, verbs: Verbs) -> None:
    pod(jobs, node, "trainer", 0, "x")
    with verbs.start("logs", "ppo", "-f") as follow:
        follow.until("trainer-0 | x")
        jobs.kubectl("delete", "rlhfjob", "ppo")
        done = follow.end()
    assert (done.code, done.err) == (1, "error: ppo was deleted\n")


def test_a_reader_that_goes_away_ends_it(jobs: Jobs, node: Kubelet, verbs: Verbs) -> None:
    """For example `rlhf logs -f | head -1`."""
    name = pod(jobs, node, "trainer", 0, "x")
    command = verbs.command("logs", "ppo", "-f")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follow:
        try:
            assert follow.stdout.readline() == b"trainer-0 | x\n"
            follow.stdout.close()
            node.write(name, "y")
            assert follow.wait(60) == 1
            assert follow.stderr.read() == b""
        finally:
            follow.kill()


@pytest.mark.parametrize(("last", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_a_watch_says_every_change_once_and_ends_with_the_job(
    last: str, code: int, jobs: Jobs, verbs: Verbs
) -> None:
    with verbs.start("status", "ppo", "--watch") as watch:
        watch.until("Running  step 0/4")
        phase(jobs, "Running", step=1)
        watch.until("step 1/4")
        phase(jobs, last, step=1)
        done = watch.end()
    assert done.code == code
    assert [line[9:] for line in done.out.splitlines()] == [
        f"{phase}  step {step}/4" for phase, step in (("Running", 0), ("Running", 1), (last, 1))
    ]


def test_an_outage_of_the_api_server_is_told_of_and_waited_out(
    own_control_plane: ControlPlane, jobs: Jobs, verbs: Verbs
) -> None:
    with verbs.start("status", "ppo", "--watch") as watch:
        watch.until("Running  step 0/4")
        own_control_plane.stop_apiserver()
        watch.until("does not answer; trying again for 5 minutes")
        own_control_plane.start_apiserver()
        watch.until("it answers again")
        phase(jobs, "Succeeded", step=4)
        assert watch.end().code == 0
