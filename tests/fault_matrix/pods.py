"""The job of the matrix as pods of a real cluster with two nodes, and faults on it one after another."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.cluster import images
from tests.cluster.down import down
from tests.cluster.down import running as is_up
from tests.cluster.node import Place
from tests.cluster.packages import cache
from tests.cluster.up import join, up
from tests.fault_matrix import hook, nodes
from tests.fault_matrix import reward as reward_module
from tests.fault_matrix.account import Prompts, Tokens, newest, sampled
from tests.fault_matrix.cells import EVERY_NODE, NODE, PODS, Cell
from tests.fault_matrix.manifest import PER_STEP, specification, write_prompts
from tests.fault_matrix.meeting import READY_SECONDS, Meeting
from tests.fault_matrix.running import NoStep, Outcome
from tests.support.installed import SYSTEM, install, uninstall, volume
from tests.support.kube import KubectlError, eventually, kubectl
from tests.support.models import tiny_model
from tests.support.operator import Jobs

from rlhf_operator.cluster.pod import USER

JOB, NAMESPACE, HOOK = "faults", "faults", "hook"
STEP_SECONDS = 420.0
"""Deadline of the step after a fault."""
_POD = {"generator": f"{JOB}-generator-1"}
"""The victim, where it is not the first pod of its role."""


class OnPods:
    """The job, once it makes steps."""

    def __init__(self, place: Place, workspace: Path) -> None:
        self._place, self._jobs = place, Jobs(place.kubeconfig, NAMESPACE)
        self._system = Jobs(place.kubeconfig, SYSTEM)
        self._workdir = workspace / "runs" / JOB
        self._meeting = Meeting(workspace / "meeting", self._wait_for)
        self._tokens = Tokens(self._workdir, self._counters)
        self._prompts: Prompts | None = None

    def strike(self, cell: Cell) -> Outcome:
        """One cell, from a step at which every role is ready to the next such step.

        Raises:
            NoStep: the job did not reach the moment, or made no step within STEP_SECONDS after it.
        """
        self._quiet()
        self._meeting.release()
        self._place_for(cell)
        before = self._quiet()
        self._prompts = self._prompts or Prompts(f"file://{self._workdir / 'checkpoints'}", PER_STEP)
        generated, there = self._tokens.generated(), self._pods()
        self._meeting.release()
        self._meeting.reach(cell.point)
        self._tokens.generated()
        step = newest(self._workdir)
        fault = self._fault(cell)
        began = time.monotonic()
        over = fault()
        self._meeting.release()
        if "trainer" in _victims(cell):  # one that is told to end makes its step first
            self._wait_for(lambda: self._gone(cell, there), STEP_SECONDS)
            step = newest(self._workdir)
        self._wait_for(lambda: newest(self._workdir) > step, STEP_SECONDS)
        seconds = time.monotonic() - began
        if over is not None:
            over.join(STEP_SECONDS)
        self._wait_for(lambda: self._gone(cell, there), STEP_SECONDS)
        after = self._quiet()
        again = self._tokens.generated() - generated - self._tokens.trained(before, after)
        lost, twice = self._prompts.check()
        events = [
            f"{name.removeprefix(f'{JOB}-')} started again"
            for name, uid in self._pods().items()
            if there.get(name) != uid
        ]
        self._meeting.release()
        return Outcome(round(seconds, 2), lost, twice, again, events)

    def _fault(self, cell: Cell) -> Callable[[], threading.Thread | None]:
        """Injects it; returns the thread that ends it, where it ends by itself."""
        if cell.fault == "node lost":
            return partial(nodes.lose, self._place.second)
        if cell.fault == "drain":
            node = self._place if cell.victim == EVERY_NODE else self._place.second
            return partial(nodes.drain, self._place.kubeconfig, node.name)
        name, uid = self._victim(cell)
        if cell.fault == "eviction":
            namespace = SYSTEM if cell.victim == "operator" else NAMESPACE
            return partial(nodes.evict, self._place.kubeconfig, namespace, name)
        return partial(os.kill, nodes.first_process(uid), signal.Signals[cell.fault])

    def _victim(self, cell: Cell) -> tuple[str, str]:
        """Name and uid of the pod."""
        if cell.victim == "operator":
            name = nodes.leader(self._place.kubeconfig, SYSTEM)
            return name, self._system.get("pod", name)["metadata"]["uid"]
        name = _POD.get(cell.victim, f"{JOB}-{cell.victim}-0")
        return name, self._jobs.pods()[name]

    def _place_for(self, cell: Cell) -> None:
        """Where a node is to go, its victims are put on it, alone; all else is on the first one."""
        if cell.fault == "node lost" or cell.victim == NODE:
            nodes.cordon(self._place.kubeconfig, self._place.name)
            for name in _victims(cell):
                self._move(Cell(PODS, name, cell.fault, cell.moment))
            if cell.fault == "drain":
                nodes.cordon(self._place.kubeconfig)
                return
        nodes.cordon(self._place.kubeconfig, self._place.second.name)

    def _move(self, cell: Cell) -> None:
        """Deletes its pod until it is on the second node."""

        def there() -> bool:
            jobs = self._system if cell.victim == "operator" else self._jobs
            name, uid = self._victim(cell)
            pod = jobs.get("pod", name)
            if pod["spec"].get("nodeName") == self._place.second.name:
                return all(c["ready"] for c in pod["status"].get("containerStatuses", [{"ready": False}]))
            if pod["spec"].get("nodeName") and uid not in deleted:
                deleted.add(uid)
                jobs.kubectl("delete", "pod", name, "--wait=false")
            return False

        deleted = set[str]()
        with suppress(KeyError):
            there()
        eventually(lambda: _or_false(there), f"{cell.victim} is on the second node", READY_SECONDS)

    def _gone(self, cell: Cell, there: dict[str, str]) -> bool:
        """Every victim was replaced, by pods of their names where they are a job's."""
        if cell.victim == "operator":
            return len(self._operators()) == 2 and self._operators() != {
                name: uid for name, uid in there.items() if name.startswith("operator")
            }
        now = self._jobs.pods()
        pods = [_POD.get(name, f"{JOB}-{name}-0") for name in _victims(cell)]
        return all(name in now and now[name] != there.get(name) for name in pods)

    def _pods(self) -> dict[str, str]:
        return {**self._jobs.pods(), **self._operators()}

    def _operators(self) -> dict[str, str]:
        """Ready ones, as `operator-0` and so on, by age; with the number of restarts of their containers."""
        found = sorted(self._system.get("pods")["items"], key=lambda p: p["metadata"]["creationTimestamp"])
        marks = [
            f"{pod['metadata']['uid']}/{status['restartCount']}"
            for pod in found
            if pod["metadata"]["name"].startswith("rlhf-")
            for status in pod["status"].get("containerStatuses", ())
            if status["ready"] and "deletionTimestamp" not in pod["metadata"]
        ]
        return {f"operator-{i}": mark for i, mark in enumerate(sorted(marks))}

    def _counters(self) -> dict[Hashable, int]:
        """Of each generator's pod that answers, by the API server's proxy."""
        found: dict[Hashable, int] = {}
        for name, uid in self._jobs.pods().items():
            if "-generator-" in name:
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8000/proxy/metrics"
                with suppress(KubectlError):
                    found[uid] = sampled(
                        kubectl(self._place.kubeconfig, "get", "--raw", path, timeout=5).encode()
                    )
        return found

    def _quiet(self) -> int:
        """Holds the job at the beginning of a step at which all are ready; returns the number of steps done."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            self._meeting.reach("trainer-0 step")
            if self._ready():
                return newest(self._workdir)
            if time.monotonic() > deadline:
                raise NoStep(f"not every role is ready after {READY_SECONDS:g} s")
            self._meeting.release()

    def _ready(self) -> bool:
        status = self._jobs.status(JOB)
        members = status.get("generators", [])
        return (
            len(self._operators()) == 2
            and all(role["ready"] == role["desired"] for role in status["roles"].values())
            and [member["ready"] for member in members] == [True] * status["roles"]["generator"]["desired"]
        )

    def _wait_for(self, happened: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not _or_false(happened):
            if time.monotonic() > deadline:
                status = self._jobs.status(JOB)
                raise NoStep(f"nothing within {seconds:g} s: {status.get('phase')}, {status.get('message')}")
            time.sleep(0.02)


def _victims(cell: Cell) -> tuple[str, ...]:
    """Those whose pods a cell takes away."""
    of_node = {NODE: ("trainer", "generator"), EVERY_NODE: ("trainer", "generator", "reward", "reference")}
    return of_node.get(cell.victim, (cell.victim,))


def _or_false(happened: Callable[[], bool]) -> bool:
    try:
        return happened()
    except (KubectlError, KeyError):  # not yet
        return False


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
    for module in (hook, reward_module):
        file = Path(module.__file__)
        target = workspace / "tests" / "fault_matrix" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (workspace / "meeting").mkdir()
    tiny_model(workspace / "policy", tie=False, seed=1)
    write_prompts(workspace / "prompts.jsonl")
    for path in (workspace, *workspace.rglob("*")):
        shutil.chown(path, USER, USER)
    workspace.chmod(0o755)
    jobs = Jobs(place.kubeconfig, NAMESPACE)
    kubectl(place.kubeconfig, "create", "namespace", NAMESPACE)
    nodes.cordon(place.kubeconfig, place.second.name)
    for each in volume(workspace):
        jobs.kubectl("apply", "-f", "-", input=json.dumps(each))
    install(place.kubeconfig)
    # A manifest's own environment has no names that begin with RLHF_.
    point = f"{hook.wait_at_point.__module__}:{hook.wait_at_point.__name__}"
    settings = [f"--from-literal=RLHF_FAULTS={point}", f"--from-literal={hook.FOLDER}=/workspace/meeting"]
    jobs.kubectl("create", "secret", "generic", HOOK, *settings)
    jobs.apply(_document())
    jobs.until(JOB, "Running", timeout=2 * READY_SECONDS)
    return OnPods(place, workspace)


def _document() -> dict[str, object]:
    spec = specification(PODS, policy="policy", prompts="prompts.jsonl")
    spec["environment"] = {"OMP_NUM_THREADS": "1"}  # five roles share two cores
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
