"""The job of the matrix as pods of a real cluster with two nodes, and faults on it one after another."""

import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
from tests.cluster.node import Place
from tests.faults.matrix import control_plane, nodes
from tests.faults.matrix.account import Prompts, Tokens, newest, sampled
from tests.faults.matrix.cells import API_SERVER, AT_ONCE, ETCD, EVERY_NODE, NODE, OPERATOR, PODS, Cell
from tests.faults.matrix.inject import later, stop
from tests.faults.matrix.manifest import PER_STEP
from tests.faults.matrix.meeting import FOLDER, READY_SECONDS, Meeting
from tests.faults.matrix.operators import Operators, is_up
from tests.faults.matrix.running import NoStep, Outcome
from tests.support.installed import SYSTEM
from tests.support.kubernetes.kube import KubectlError, eventually, kubectl
from tests.support.kubernetes.operator import Jobs

JOB, NAMESPACE = "faults", "faults"
STEP_SECONDS = 420.0
"""Deadline of the step after a fault."""
_RIGHT_SECONDS = 45.0
"""Deadline of the status to say what is so, while a step waits; less than the hook's."""
_PARTS = (
    Cell(PODS, API_SERVER, "SIGSTOP", "generating"),
    Cell(PODS, OPERATOR, "SIGKILL", "generating"),
    Cell(PODS, "generator", "node lost", "generating"),
)
"""Of AT_ONCE."""
Fault = Callable[[], threading.Thread | None]
"""Injects it; returns the thread that ends it, where it ends by itself."""
_POD = {"generator": f"{JOB}-generator-1"}
"""The victim, where it is not the first pod of its role."""


class OnPods:
    """The job, once it makes steps."""

    def __init__(self, place: Place, workspace: Path) -> None:
        self._place, self._jobs = place, Jobs(place.kubeconfig, NAMESPACE)
        self._operators = Operators(place)
        self._workdir = workspace / "runs" / JOB
        self._meeting = Meeting(workspace / FOLDER, self._wait_for)
        self._tokens = Tokens(self._workdir, self._counters)
        self._prompts: Prompts | None = None

    def strike(self, cell: Cell) -> Outcome:
        """One cell, from a step at which every role is ready to the next such step.

        Raises:
            NoStep: the job did not reach the moment, or made no step within STEP_SECONDS after it; or its status did
                not tell of one, or is wrong in the end.
        """
        self._quiet()
        self._meeting.release()
        self._place_for(cell)
        self._operators.renew()
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
            self._wait_for(lambda: self._is_deleted(cell, there), STEP_SECONDS)
            step = newest(self._workdir)
        self._wait_for(lambda: newest(self._workdir) > step, STEP_SECONDS)
        seconds = time.monotonic() - began
        self._wait_for(lambda: self._jobs.status(JOB)["step"] > step, STEP_SECONDS)
        told_seconds, steps = time.monotonic() - began, newest(self._workdir) - step
        if over is not None:
            over.join(STEP_SECONDS)
        self._wait_for(lambda: self._is_deleted(cell, there), STEP_SECONDS)
        after = self._quiet()
        self._wait_for(lambda: self._is_right(after), _RIGHT_SECONDS)
        again = self._tokens.generated() - generated - self._tokens.trained(before, after)
        lost, twice = self._prompts.check()
        events = [
            f"{name.removeprefix(f'{JOB}-')} started again"
            for name, uid in self._pods().items()
            if there.get(name) != uid
        ]
        self._meeting.release()
        outcome = Outcome(round(seconds, 2), lost, twice, again, events)
        return replace(outcome, told=round(told_seconds, 2), steps=steps)

    def _fault(self, cell: Cell) -> Fault:
        """The fault, with its victim."""
        if cell.victim == AT_ONCE:
            return partial(_together, [self._fault(each) for each in _PARTS])
        if cell.fault == "node lost":
            return partial(nodes.lose, self._place.second)
        if cell.fault == "drain":
            node = self._place if cell.victim == EVERY_NODE else self._place.second
            return partial(nodes.drain, self._place.kubeconfig, node.name)
        if cell.victim in (API_SERVER, ETCD):
            if cell.fault == "connections cut":
                return partial(control_plane.cut, self._place, self._operators.addresses())
            return _signal(control_plane.server(self._place, cell.victim), cell.fault)
        name, uid = self._victim(cell)
        if cell.fault == "connections cut":
            return partial(control_plane.cut, self._place, self._operators.addresses(name))
        if cell.fault == "eviction":
            namespace = SYSTEM if cell.victim == OPERATOR else NAMESPACE
            return partial(nodes.evict, self._place.kubeconfig, namespace, name)
        return _signal(psutil.Process(nodes.first_process(uid)), cell.fault)

    def _victim(self, cell: Cell) -> tuple[str, str]:
        """Name and uid of the pod."""
        if cell.victim == OPERATOR:
            return self._operators.leader()
        name = _POD.get(cell.victim, f"{JOB}-{cell.victim}-0")
        return name, self._jobs.pods()[name]

    def _place_for(self, cell: Cell) -> None:
        """Cordons nodes so that the victims of a node to be lost are on it, alone, and all else is on the first one."""
        if cell.fault == "node lost" or cell.victim in (NODE, AT_ONCE):
            nodes.cordon(self._place.kubeconfig, self._place.name)
            for name in _victims(cell):
                self._move(Cell(PODS, name, cell.fault, cell.moment))
            if cell.fault == "drain":
                nodes.cordon(self._place.kubeconfig)
                return
        nodes.cordon(self._place.kubeconfig, self._place.second.name)

    def _move(self, cell: Cell) -> None:
        """Deletes its pod until it is on the second node."""
        if cell.victim == OPERATOR:
            self._operators.move_leader()
            return

        def there() -> bool:
            name, uid = self._victim(cell)
            pod = self._jobs.get("pod", name)
            if pod["spec"].get("nodeName") == self._place.second.name:
                return is_up(pod)
            if pod["spec"].get("nodeName") and uid not in deleted:
                deleted.add(uid)
                self._jobs.kubectl("delete", "pod", name, "--wait=false")
            return False

        deleted = set[str]()
        with suppress(KeyError):
            there()
        eventually(lambda: _or_false(there), f"{cell.victim} is on the second node", READY_SECONDS)

    def _is_deleted(self, cell: Cell, there: dict[str, str]) -> bool:
        """Every victim was replaced, by pods of their names where they are a job's."""
        if cell.victim == OPERATOR:
            return len(self._operators.ready()) == 2 and self._operators.ready() != {
                name: uid for name, uid in there.items() if name.startswith("operator")
            }
        now = self._jobs.pods()
        pods = [_POD.get(name, f"{JOB}-{name}-0") for name in _victims(cell)]
        return all(name in now and now[name] != there.get(name) for name in pods)

    def _pods(self) -> dict[str, str]:
        return {**self._jobs.pods(), **self._operators.ready()}

    def _counters(self) -> dict[Hashable, int]:
        """Of each generator's pod that answers, by the API server's proxy."""
        counts: dict[Hashable, int] = {}
        for name, uid in self._jobs.pods().items():
            if "-generator-" in name:
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8000/proxy/metrics"
                with suppress(KubectlError):
                    counts[uid] = sampled(
                        kubectl(self._place.kubeconfig, "get", "--raw", path, timeout=5).encode()
                    )
        return counts

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
            len(self._operators.ready()) == 2
            and all(role["ready"] == role["desired"] for role in status["roles"].values())
            and [member["ready"] for member in members] == [True] * status["roles"]["generator"]["desired"]
        )

    def _is_right(self, step: int) -> bool:
        """The status says what is so, at a step that waits."""
        status = self._jobs.status(JOB)
        stalled = [c for c in status["conditions"] if c["type"] == "Stalled" and c["status"] == "True"]
        return status["step"] == step and status["phase"] == "Running" and not stalled

    def _wait_for(self, happened: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not _or_false(happened):
            if time.monotonic() > deadline:
                status = self._jobs.status(JOB)
                raise NoStep(f"nothing within {seconds:g} s: {status.get('phase')}, {status.get('message')}")
            time.sleep(0.02)


def _victims(cell: Cell) -> tuple[str, ...]:
    """Those whose pods a cell takes away."""
    others = {
        NODE: ("trainer", "generator"),
        EVERY_NODE: ("trainer", "generator", "reward", "reference"),
        API_SERVER: (),
        ETCD: (),
        AT_ONCE: ("generator",),
    }
    return others.get(cell.victim, (cell.victim,))


def _signal(process: psutil.Process, name: str) -> Fault:
    if name == "SIGSTOP":
        return partial(stop, process)
    return partial(process.send_signal, signal.Signals[name])


def _together(faults: Sequence[Fault]) -> threading.Thread:
    """All at once; the thread that waits for their end."""
    threads = [thread for fault in faults if (thread := fault()) is not None]
    return later(0, lambda: [thread.join() for thread in threads])


def _or_false(happened: Callable[[], bool]) -> bool:
    try:
        return happened()
    except (KubectlError, KeyError):  # not yet
        return False
