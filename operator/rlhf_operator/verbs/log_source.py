"""Logs of a job's processes: which container of which pod has each, and how far it is; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.contract.run import process_name
from rlhf_api.roles import Role

from ..job.names import RANK
from ..job.shared_pod import processes_in

Body = Mapping[str, Any]


@dataclass(frozen=True)
class LogSource:
    """One start of a process's container. In a pod that processes share, a kubelet starts a container that ended
    again, whose log begins anew."""

    pod: str
    uid: str
    container: str
    start: int
    role: Role
    index: int
    rank: int

    @property
    def process(self) -> str:
        return process_name(self.role, self.index, self.rank)

    @property
    def place(self) -> tuple[int, int, int]:
        """Its order among the job's."""
        return list(Role).index(self.role), self.index, self.rank


def log_sources(pod: Body) -> list[LogSource]:
    """The present starts of a pod's processes."""
    meta, rank = pod["metadata"], int(pod["metadata"]["labels"].get(RANK, "0"))
    return [
        LogSource(meta["name"], meta["uid"], name, _start(pod, name), role, index, rank)
        for name, role, index in processes_in(pod)
    ]


def has_begun(pod: Body, source: LogSource) -> bool:
    """True if its container has a log."""
    status = _status(pod, source.container)
    return bool({"running", "terminated"} & {*status.get("state", {}), *status.get("lastState", {})})


def has_ended(pod: Body, source: LogSource) -> bool:
    """True if its log is complete."""
    status = _status(pod, source.container)
    return "running" not in status.get("state", {}) and has_begun(pod, source)


def is_replaced(pod: Body, source: LogSource) -> bool:
    """True if its container has started again, or its pod's name is another's: the log by its name is another one."""
    return bool(pod["metadata"]["uid"] != source.uid) or _start(pod, source.container) != source.start


def _start(pod: Body, container: str) -> int:
    return int(_status(pod, container).get("restartCount", 0))


def _status(pod: Body, container: str) -> Body:
    containers = pod.get("status", {}).get("containerStatuses") or ()
    status: Body = next((each for each in containers if each["name"] == container), {})
    return status
