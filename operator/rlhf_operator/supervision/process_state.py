"""States of a job's processes, as either host sees them, and the actions on them: the terms of the restart policy."""

import signal
from dataclasses import dataclass

from rlhf_api.contract.run import process_name
from rlhf_api.contract.status import Phase
from rlhf_api.roles import Role

from .exit_reasons import failure_type

SIGTERMED = 128 + signal.SIGTERM
"""Exit code of a process that SIGTERM has ended."""


@dataclass(frozen=True)
class Ended:
    """The end of a process."""

    at: float
    code: int
    """Exit code, 0 to 255; from 129 on, 128 plus a signal."""
    reason: str
    """Text of the exit code or signal, the termination message or the log's best line, and the log's place."""
    disrupted: bool = False
    """True if the end was not the process's fault: its node was drained, lost or preempted. Such an end does not count
    against the budget."""
    cause: str = ""
    """Kubernetes' reason, of the container or the pod, such as `OOMKilled`."""
    log: str = ""
    """Last lines of its log, where they are lost with the process."""

    @property
    def type(self) -> str:
        """Failure type, such as `EngineDead`; empty if unknown."""
        return failure_type(self.reason)


@dataclass(frozen=True)
class ProcessState:
    """Present state of one process; times are seconds on one monotonic clock."""

    role: Role
    index: int
    started: float | None = None
    """Time of its start; None before the first one."""
    ready: bool = False
    """True once it has answered since its start."""
    ended: Ended | None = None
    rank: int = 0
    """Rank in a multi-pod generator; rank 0 has the API."""
    node: str = ""
    """On a cluster: where it runs, or ran."""

    @property
    def name(self) -> str:
        return process_name(self.role, self.index, self.rank)


@dataclass(frozen=True)
class Start:
    """Start or restart processes of one role, all of each index."""

    role: Role
    indices: tuple[int, ...]
    again: bool = False
    disrupted: bool = False
    """True if the last end was a disruption."""
    cause: str = ""
    """The error that it follows, and the job's step then, if the same computation would meet it again."""

    @property
    def counts(self) -> bool:
        """True if it counts against the role's `backoffLimit`."""
        return self.again and not self.disrupted


@dataclass(frozen=True)
class Kill:
    """Kill a process that hangs or did not start in time."""

    role: Role
    index: int
    why: str
    rank: int = 0


@dataclass(frozen=True)
class Finish:
    """The job is over: stop everything."""

    phase: Phase
    reason: str
    message: str


Action = Start | Kill | Finish
