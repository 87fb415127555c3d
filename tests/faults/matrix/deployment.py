"""The job of the matrix on a cluster of its own, with two nodes."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import images
from tests.cluster.down import down
from tests.cluster.down import running as is_up
from tests.cluster.node import Place
from tests.cluster.packages import cache
from tests.cluster.up import join, up
from tests.faults.matrix import hook, nodes
from tests.faults.matrix import reward as reward_module
from tests.faults.matrix.cells import PODS
from tests.faults.matrix.manifest import specification, write_prompts
from tests.faults.matrix.meeting import FOLDER as MEETING
from tests.faults.matrix.meeting import READY_SECONDS
from tests.faults.matrix.pods import JOB, NAMESPACE, OnPods
from tests.support.installed import install, uninstall, volume
from tests.support.kubernetes.kube import kubectl
from tests.support.kubernetes.operator import Jobs
from tests.support.tiny.models import tiny_model

from rlhf_operator.cluster.objects.pod import USER

HOOK = "hook"


@contextmanager
def on_pods(folder: Path) -> Iterator[OnPods]:
    """The job on a cluster of its own, with the workspace in `folder`; taken down afterwards."""
    place = Place(cache() / "faults")
    images.build()
    started = not is_up(place)
    up(place)
    try:
        images.load(place)
        images.load(join(place) if not is_up(place.second) else place.second)
        job = _begin(place, folder)
        try:
            yield job
        finally:
            if not started:
                uninstall(place.kubeconfig, NAMESPACE)
    finally:
        if started:
            down(place)


def _begin(place: Place, workspace: Path) -> OnPods:
    """Installs the chart and submits the job."""
    furnish(workspace)
    workspace.chmod(0o755)
    jobs = Jobs(place.kubeconfig, NAMESPACE)
    kubectl(place.kubeconfig, "create", "namespace", NAMESPACE)
    nodes.cordon(place.kubeconfig, place.second.name)
    for each in volume(workspace):
        jobs.kubectl("apply", "-f", "-", input=json.dumps(each))
    install(place.kubeconfig)
    make_hook(jobs)
    jobs.apply(_document())
    jobs.until(JOB, "Running", timeout=2 * READY_SECONDS)
    return OnPods(place, workspace)


def furnish(workspace: Path) -> None:
    """A model, prompts, the reward and the hook, for jobs of `specification` whose pods mount the workspace."""
    for module in (hook, reward_module):
        target = workspace.joinpath(*module.__name__.split(".")).with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module.__file__, target)
    (workspace / MEETING).mkdir(exist_ok=True)  # tests of one cluster have one workspace
    tiny_model(workspace / "policy", tie=False, seed=1)
    write_prompts(workspace / "prompts.jsonl")
    for path in (workspace, *workspace.rglob("*")):
        shutil.chown(path, USER, USER)


def make_hook(jobs: Jobs) -> None:
    """The Secret with which the processes of a job wait at named points, as `Meeting` in the folder MEETING says."""
    # A manifest's own environment has no names that begin with RLHF_.
    point = f"{hook.wait_at_point.__module__}:{hook.wait_at_point.__name__}"
    settings = [f"--from-literal=RLHF_FAULTS={point}", f"--from-literal={hook.FOLDER}=/workspace/{MEETING}"]
    jobs.kubectl("create", "secret", "generic", HOOK, *settings)


def _document() -> dict[str, object]:
    spec = specification(PODS, policy="policy", prompts="prompts.jsonl")
    spec["env"] = {"OMP_NUM_THREADS": "1"}  # five roles share two cores
    spec["pods"] = {
        "secrets": [HOOK],
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": nodes.TOLERATED_SECONDS,
            }
            for state in ("not-ready", "unreachable")
        ],
    }
    grace = {"terminationGracePeriodSeconds": nodes.GRACE_SECONDS}
    spec["trainer"] |= {"pods": {"template": {"spec": grace}}}
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": JOB}}
    return {**head, "spec": spec}
