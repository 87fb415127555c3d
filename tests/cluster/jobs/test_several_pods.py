"""A generator over two pods, all real: vLLM's workers in both of them, weights for both, and the end of one."""

import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from tests.faults.matrix.account import Prompts, metrics, newest
from tests.faults.matrix.cells import PODS
from tests.faults.matrix.deployment import HOOK, furnish, make_hook
from tests.faults.matrix.manifest import PER_STEP, specification
from tests.faults.matrix.meeting import FOLDER, Meeting
from tests.faults.matrix.nodes import first_process
from tests.support.installed import SYSTEM, workspace
from tests.support.kubernetes.kube import eventually, kubectl
from tests.support.kubernetes.operator import Jobs

pytestmark = pytest.mark.timeout(1800)
NAME, STEPS, RUN_S = "pair", 10, 600.0
GENERATING = "trainer-0 generating"
ENGINE, FOLLOWER = f"{NAME}-generator-0", f"{NAME}-generator-0-1"
ASK_WORKERS = """
import json, os, urllib.request
head = {"Authorization": "Bearer " + os.environ["RLHF_TOKEN"], "Content-Type": "application/json"}
body = json.dumps({"method": "rlhf_status"}).encode()
url = f"http://127.0.0.1:{os.environ['RLHF_PORT']}/collective_rpc"
print(urllib.request.urlopen(urllib.request.Request(url, body, head), timeout=30).read().decode())
"""


@pytest.fixture
def held(jobs: Jobs) -> Iterator[Meeting]:
    """The trainer of a job that has been submitted, which waits where it is told to."""
    furnish(workspace(jobs))
    make_hook(jobs)
    jobs.apply(document())
    yield Meeting(workspace(jobs) / FOLDER, lambda there, seconds: eventually(there, "the point", seconds))
    jobs.kubectl("delete", "rlhfjob", NAME)


def document() -> dict[str, Any]:
    spec = specification(PODS, policy="policy", prompts="prompts.jsonl")
    spec["generator"] |= {"replicas": 1, "podsPerReplica": 2, "tensorParallelSize": 2}
    spec |= {
        "steps": STEPS,
        "env": {"OMP_NUM_THREADS": "1"},  # five pods share two cores
        "pods": {"secrets": [HOOK]},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": NAME}}
    return {**head, "spec": spec}


def test_both_pods_get_every_update_and_are_made_again_as_one(jobs: Jobs, held: Meeting) -> None:
    with jobs.explained(SYSTEM):
        check_pair(jobs, held)


def check_pair(jobs: Jobs, held: Meeting) -> None:
    runs = workspace(jobs) / "runs" / NAME

    def hold(steps: int) -> list[dict[str, Any]]:
        """Lets the trainer go on until it has made so many steps; what each worker serves then."""
        held.reach(GENERATING)
        while newest(runs) < steps:
            held.release()
            held.reach(GENERATING)
        return ask_workers(jobs)

    first = hold(2)
    check_equal(first)
    before = jobs.pods()
    assert {ENGINE, FOLLOWER} < before.keys()

    held.release()
    held.reach(GENERATING)
    done = newest(runs)
    worker_of(before[FOLLOWER]).kill()
    held.release()
    again = hold(done + 1)
    check_equal(again)
    assert again[0]["digest"] != first[0]["digest"]
    after = jobs.pods()
    assert {name for name in before if after.get(name) != before[name]} == {ENGINE, FOLLOWER}
    held.release()

    status = jobs.until(NAME, "Succeeded", timeout=RUN_S)
    generator = status["roles"]["generator"]
    assert (generator["restarts"], status["roles"]["trainer"]["restarts"]) == (1, 0)
    assert "was ended by SIGKILL" in generator["lastFailure"]["reason"]
    assert [*metrics(runs)] == list(range(1, STEPS + 1))
    assert Prompts(f"file://{runs / 'checkpoints'}", PER_STEP).check() == (0, 0), "lost, trained on twice"


def check_equal(workers: list[dict[str, Any]]) -> None:
    """Each worker has the newest weights, of which the trainer has sent at least two versions, by their digest."""
    assert [worker["rank"] for worker in workers] == [0, 1]
    (version, announced, _), *others = {
        (worker["version"], worker["announced_version"], worker["digest"]) for worker in workers
    }
    assert not others
    assert version == announced >= 2


def ask_workers(jobs: Jobs) -> list[dict[str, Any]]:
    where = ("exec", ENGINE, "-n", jobs.namespace)
    return json.loads(kubectl(jobs.kubeconfig, *where, "--", "python3", "-c", ASK_WORKERS))["results"]


def worker_of(uid: str) -> psutil.Process:
    """vLLM's only one in this pod."""
    (worker,) = (p for p in psutil.Process(first_process(uid)).children() if "Worker" in p.cmdline()[0])
    return worker
