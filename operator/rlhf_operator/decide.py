"""What to do next about a job's processes: a pure function of what is seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.roles import Role
from rlhf_api.run import EXIT_INVALID, EXIT_SUSPENDED
from rlhf_api.spec import Spec
from rlhf_api.status import Phase

PEERS_SECONDS = 30.0
"""How long trainer processes may outlast the first that succeeded."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    at: float
    code: int
    """0 to 255; from 129 on, 128 plus a signal."""
    reason: str
    """In words: the exit code or signal, its termination message or the log's last telling line, the log."""
    disrupted: bool = False
    """Not its own fault: its node was drained, lost or wanted by others. Such ends use up no budget."""


@dataclass(frozen=True)
class Seen:
    """One process of a job as it is now; times are seconds on one monotonic clock."""

    role: Role
    index: int
    started: float | None = None
    """None before its first start."""
    ready: bool = False
    """It has answered since it was started."""
    ended: Ended | None = None

    @property
    def name(self) -> str:
        return f"{self.role.value}-{self.index}"


@dataclass(frozen=True)
class Start:
    """Start processes of one role; again, if they ran before."""

    role: Role
    indices: tuple[int, ...]
    again: bool = False
    disrupted: bool = False
    """It ended by no fault of its own."""

    @property
    def counts(self) -> bool:
        """Against the role's `backoffLimit`."""
        return self.again and not self.disrupted


@dataclass(frozen=True)
class Kill:
    """End a process that does not serve its purpose."""

    role: Role
    index: int
    why: str


@dataclass(frozen=True)
class Finish:
    """The job is over: stop everything."""

    phase: Phase
    reason: str
    message: str


Action = Start | Kill | Finish


def delay(restarts: int) -> float:
    """Seconds between a process's end and its next start, after so many restarts of its role."""
    return min(0.5 * 2.0**restarts, 10.0)


def decide(
    spec: Spec, seen: Sequence[Seen], restarts: Mapping[Role, int], *, resumable: bool, now: float
) -> tuple[Action, ...]:
    """What to do; a Finish stands alone. `resumable`: the trainer has something to go on from."""
    by_role = {role: [s for s in seen if s.role is role] for role in Role}
    if (over := _trainer_outcome(by_role[Role.TRAINER], now)) is not None:
        return (over,)
    for process in sorted((s for s in seen if s.ended), key=lambda s: s.ended.at if s.ended else 0):
        if process.ended and process.ended.code == EXIT_INVALID:
            return (Finish("Failed", "InvalidConfiguration", f"{process.name} {process.ended.reason}"),)
    actions: list[Action] = []
    for role, processes in by_role.items():
        if role is Role.TRAINER:
            actions += _gang(spec, processes, restarts.get(role, 0), resumable, now)
        else:
            actions += _servers(spec, processes, restarts.get(role, 0), now)
        actions += [late for s in processes if (late := _late(spec, s, now))]
    finish = [action for action in actions if isinstance(action, Finish)]
    return (finish[0],) if finish else tuple(actions)


def _trainer_outcome(trainers: Sequence[Seen], now: float) -> Finish | None:
    """The end of the job where the trainer ended as it should: done, or suspended on request."""
    ended = [s.ended for s in trainers if s.ended]
    if not ended or (len(ended) < len(trainers) and now < min(e.at for e in ended) + PEERS_SECONDS):
        return None
    first = trainers[0].ended
    if first is not None and first.code == 0:
        return Finish("Succeeded", "Completed", "")
    if any(e.code == EXIT_SUSPENDED for e in ended):
        return Finish("Suspended", "StoppedOnRequest", "")
    return None


def _first_failure(processes: Sequence[Seen]) -> tuple[Seen, Ended]:
    """The process that failed first; one that ended with 0 or was suspended only followed it."""
    ended = [(s, s.ended) for s in processes if s.ended]
    return min(ended, key=lambda pair: (pair[1].code in (0, EXIT_SUSPENDED), pair[1].at, pair[1].disrupted))


def _exhausted(spec: Spec, process: Seen, ended: Ended, restarts: int) -> Finish | None:
    limit: int = getattr(spec, process.role.value).backoff_limit
    if restarts < limit or ended.disrupted:
        return None
    field = f"spec.{process.role.value}.backoffLimit"
    tried = f" (started again {restarts} of {limit} times)" if limit else f" ({field} is 0)"
    return Finish("Failed", "BackoffLimitExceeded", f"{process.name} {ended.reason}{tried}")


def _gang(spec: Spec, trainers: Sequence[Seen], restarts: int, resumable: bool, now: float) -> list[Action]:
    """The trainer's processes run together: all of them, or none."""
    fresh = tuple(s.index for s in trainers if s.started is None)
    if fresh:
        return [Start(Role.TRAINER, fresh)]
    failed = [s for s in trainers if s.ended and s.ended.code not in (0, EXIT_SUSPENDED)]
    if not failed:
        return []
    first, ended = _first_failure(trainers)
    if not resumable:
        message = f"{first.name} {ended.reason} (before the first checkpoint, so not started again)"
        return [Finish("Failed", "NoCheckpoint", message)]
    if (finish := _exhausted(spec, first, ended, restarts)) is not None:
        return [finish]
    running = [s for s in trainers if not s.ended]
    if running:
        return [Kill(s.role, s.index, f"its peer {first.name} {ended.reason}") for s in running]
    if now < max(s.ended.at for s in trainers if s.ended) + delay(restarts):
        return []
    every = tuple(s.index for s in trainers)
    return [Start(Role.TRAINER, every, again=True, disrupted=ended.disrupted)]


def _servers(spec: Spec, processes: Sequence[Seen], restarts: int, now: float) -> list[Action]:
    """A server stands alone: it is started again when it ends, whatever its exit code."""
    actions: list[Action] = []
    for process in processes:
        if process.started is None:
            actions.append(Start(process.role, (process.index,)))
        elif process.ended is not None:
            finish = _exhausted(spec, process, process.ended, restarts)
            if finish is not None:
                return [finish]
            if now >= process.ended.at + delay(restarts):
                start = Start(process.role, (process.index,), again=True, disrupted=process.ended.disrupted)
                actions.append(start)
                restarts += start.counts
    return actions


def _late(spec: Spec, process: Seen, now: float) -> Kill | None:
    limit: int = getattr(spec, process.role.value).startup_timeout_seconds
    if process.started is None or process.ready or process.ended or now < process.started + limit:
        return None
    field = f"spec.{process.role.value}.startupTimeoutSeconds"
    return Kill(process.role, process.index, f"did not answer within {limit} s ({field})")
