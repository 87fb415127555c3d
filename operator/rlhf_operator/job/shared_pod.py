"""Splits a pod that the processes of all roles share: each is shown as if it had a pod of its own; pure.

Its kubelet starts a container that failed again, in the same pod. Each start counts as a pod, whose uid has the number
of the start: the end of one is shown until the operator has counted it, and then its successor.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlhf_api.contract.run import place_named, process_name
from rlhf_api.roles import Role
from rlhf_api.rules.pods.template import CONTAINER

from .names import INDEX, ROLE
from .pod_resources import Body, devices
from .pod_status import LOST, OVER
from .snapshot import Pod


def read_pods(body: Body, counted: Collection[str] = ()) -> list[Pod]:
    """The pod, or the processes that share it as a pod each, the trainer first; `counted`: uids of starts whose ends
    were counted. Raises KeyError or ValueError for a pod that is not the operator's."""
    processes = processes_in(body)
    if len(processes) == 1:
        return [Pod.of(body)]
    return [_process(body, *process, counted) for process in processes]


def processes_in(body: Body) -> list[tuple[str, Role, int]]:
    """Container, role and index of each process of a pod, its own one first."""
    labels = body["metadata"]["labels"]
    own = (CONTAINER, Role(labels[ROLE]), int(labels[INDEX]))
    names = [each["name"] for each in (body.get("spec") or {}).get("containers") or ()]
    return [own, *((name, *process) for name in names if (process := place_named(name)))]


@dataclass(frozen=True)
class _Start:
    """One start of a container."""

    number: int
    state: Mapping[str, Any]
    present: bool = True
    """False for an earlier start, or one that is yet to come."""


def _process(body: Body, container: str, role: Role, index: int, counted: Collection[str]) -> Pod:
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    process, own = process_name(role, index, 0), container == CONTAINER
    statuses = status.get("containerStatuses") or ()
    given: Body = next((each for each in statuses if each["name"] == container), {})

    def uid(number: int) -> str:
        return f"{meta['uid']}/{process}/{number}"

    start = _start(given, lambda number: uid(number) in counted)
    shown = {**given, "name": CONTAINER, "state": start.state}
    shown |= {} if start.present else {"ready": False, "started": False}
    sidecars = [each for each in statuses if own and not place_named(each["name"])]
    beside = [each for each in sidecars if each["name"] != CONTAINER]
    mine = [{**each, "name": CONTAINER} for each in spec.get("containers") or () if each["name"] == container]
    pod = Pod.of(
        {
            **body,
            "metadata": {
                **meta,
                "uid": uid(start.number),
                "labels": {**meta["labels"], ROLE: role, INDEX: index},
            },
            "spec": {**spec, "containers": mine},
            "status": {**status, "containerStatuses": [shown, *beside]},
        },
        f"{meta['name']} -c {container}{' --previous' if _is_started_again(start, status) else ''}",
    )
    return replace(
        pod,
        ready=bool(shown.get("ready")),
        pod_uid=meta["uid"],
        last_uid=uid(start.number - 1) if start.number else "",
        # What the pod holds as a whole is its trainer's.
        devices=devices(spec) if own else (),
        claims=pod.claims if own else (),
        initializing=pod.initializing if own else None,
        unstarted=pod.unstarted and not start.number,
    )


def _is_started_again(start: _Start, status: Body) -> bool:
    """True if the log of a start that failed is that of the one before, by the time somebody reads it."""
    end = start.state.get("terminated")
    return bool(end and end.get("exitCode")) and status.get("phase") not in OVER


def _start(given: Body, is_counted: Callable[[int], bool]) -> _Start:
    """The start to show: the last one that has ended, until it is counted; then the next one."""
    number, state = int(given.get("restartCount", 0)), given.get("state") or {}
    last = (given.get("lastState") or {}).get("terminated")
    if "running" in state:
        if last and number and not is_counted(number - 1):
            return _Start(number - 1, {"terminated": last}, present=False)
        return _Start(number, state)
    # Between two starts a kubelet shows the number of the one that has ended.
    end = state.get("terminated") or last
    if end is None:
        return _Start(number, state)
    if "terminated" not in state and end.get("containerID", "") != given.get("containerID", ""):
        # Its kubelet has lost this start's container: it names none, and still shows the end of the one before.
        end = {"reason": LOST[0]}
    if not is_counted(number):
        return _Start(number, {"terminated": end})
    waiting = state if "waiting" in state else {}
    return _Start(number + 1, waiting, present=False)
