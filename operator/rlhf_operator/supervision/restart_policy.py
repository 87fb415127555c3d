"""Start, kill and finish decisions for a job's processes, by restart budgets and failure rules; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rlhf_api.contract.run import EXIT_INVALID, EXIT_ROLLED_BACK, EXIT_SUSPENDED, EXIT_UNHEALTHY
from rlhf_api.contract.teachers import alike
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from .budget import Restarts, budget, current_window
from .exit_reasons import is_repeatable
from .process_state import Action, Ended, Finish, Kill, ProcessState, Start

INVALID = "InvalidConfiguration"
"""Reason of a job that is at fault itself."""
UNHEALTHY = "HealthRule"
"""Reason of a job that a rule of spec.health has ended."""
_FOR_GOOD = {EXIT_INVALID: INVALID, EXIT_UNHEALTHY: UNHEALTHY}
"""Exit codes after which a restart would not help."""
PEERS_SECONDS = 30.0
"""Maximum time that trainer processes may outlast the first one that succeeded, seconds."""


def decide(
    spec: Spec,
    states: Sequence[ProcessState],
    restarts: Mapping[Role, Restarts],
    *,
    now: float,
    step: int = 0,
    startup_timeouts: bool = True,
) -> tuple[Action, ...]:
    """Actions to take now; a Finish is the only action. `step`: the job's last one; `startup_timeouts`: kill processes
    that start too slowly, if nothing else does.
    """
    if (over := _trainer_outcome([s for s in states if s.role is Role.TRAINER], now)) is not None:
        return (over,)
    judged = [_apply_failure_rules(spec, s) for s in states]
    if finishes := [j for j in judged if isinstance(j, _Verdict)]:
        return (min(finishes, key=lambda verdict: verdict.at).finish,)
    processes = [j for j in judged if isinstance(j, ProcessState)]
    actions: list[Action] = []
    for role in Role:
        of_role = [s for s in processes if s.role is role]
        budget_left = current_window(spec, restarts, role, now)
        if role is Role.TRAINER:
            actions += _gang(spec, of_role, budget_left, now, step)
        else:
            actions += _servers(spec, of_role, budget_left, now)
        if startup_timeouts:
            actions += [late for s in of_role if (late := _late(spec, s, now))]
    finish = [action for action in actions if isinstance(action, Finish)]
    return (finish[0],) if finish else tuple(actions)


@dataclass(frozen=True)
class _Verdict:
    """An end that finishes the job."""

    at: float
    finish: Finish


def _apply_failure_rules(spec: Spec, process: ProcessState) -> ProcessState | _Verdict:
    """The process with the first matching failure rule of its role applied to its end."""
    ended = process.ended
    if ended is None or (process.role is Role.TRAINER and ended.code in (0, EXIT_SUSPENDED)):
        return process
    section = spec.section(process.role)
    for i, rule in enumerate(section.failure_rules):
        if ended.code not in rule.exit_codes and not {ended.cause, ended.type} & set(rule.reasons):
            continue
        if rule.action == "FailJob":
            message = f"{process.name} {ended.reason} (spec.{process.role.value}.failureRules[{i}])"
            return _Verdict(ended.at, Finish("Failed", "FailureRule", message))
        return replace(process, ended=replace(ended, disrupted=rule.action == "Ignore"))
    if (reason := _FOR_GOOD.get(ended.code)) is not None:
        return _Verdict(ended.at, Finish("Failed", reason, f"{process.name} {ended.reason}"))
    if ended.code == EXIT_ROLLED_BACK:  # bounded by spec.health.maxRollbacks, not by the role's budget
        return replace(process, ended=replace(ended, disrupted=True))
    return process


def _trainer_outcome(trainers: Sequence[ProcessState], now: float) -> Finish | None:
    """Finish of the job if the trainer ended regularly: succeeded, or suspended on request."""
    ended = [s.ended for s in trainers if s.ended]
    if not ended or (len(ended) < len(trainers) and now < min(e.at for e in ended) + PEERS_SECONDS):
        return None
    first = trainers[0].ended
    if first is not None and first.code == 0:
        return Finish("Succeeded", "Completed", "")
    if any(e.code == EXIT_SUSPENDED for e in ended):
        return Finish("Suspended", "StoppedOnRequest", "the trainer was told to stop, by a signal or its API")
    return None


def _first_failure(processes: Sequence[ProcessState]) -> tuple[ProcessState, Ended]:
    """The process that failed first; ends with code 0 or by a suspend are consequences. Of ends within a second, the
    later rank's came first: a generator's rank 0 dies of the others' ends, but they do not notice its own."""
    ended = [(s, s.ended) for s in processes if s.ended]

    def order(pair: tuple[ProcessState, Ended]) -> tuple[bool, float, bool, int]:
        process, end = pair
        return end.code in (0, EXIT_SUSPENDED), end.at, end.disrupted, -process.rank

    return min(ended, key=order)


def _budget_exhausted(spec: Spec, process: ProcessState, ended: Ended, restarts: Restarts) -> Finish | None:
    limit, window = budget(spec, process.role)
    if restarts.failures < limit or ended.disrupted:
        return None
    field = f"spec.{process.role.value}.backoffLimit"
    tried = (
        f"started again {restarts.failures} of {limit} times within {window} s" if limit else f"{field} is 0"
    )
    kind = f"{ended.type}; " if ended.type else ""
    return Finish("Failed", "BackoffLimitExceeded", f"{process.name} {ended.reason} ({kind}{tried})")


def _gang(
    spec: Spec, trainers: Sequence[ProcessState], restarts: Restarts, now: float, step: int
) -> list[Action]:
    """Actions for the trainer's processes, which run together: all or none. An error of the program that comes twice
    at the same step ends the job: a third start would meet it again."""
    fresh = tuple(s.index for s in trainers if s.started is None)
    if fresh:
        return [Start(Role.TRAINER, fresh)]
    failed = [s for s in trainers if s.ended and s.ended.code not in (0, EXIT_SUSPENDED)]
    if not failed:
        return []
    first, ended = _first_failure(trainers)
    if (finish := _budget_exhausted(spec, first, ended, restarts)) is not None:
        return [finish]
    cause = _repeatable_cause(ended, step)
    if cause and cause == restarts.cause:
        message = f"{first.name} {ended.reason} (twice at step {step}: another start would end the same)"
        return [Finish("Failed", "SameErrorTwice", message)]
    running = [s for s in trainers if not s.ended]
    if running:
        return [Kill(s.role, s.index, f"its peer {first.name} {ended.reason}") for s in running]
    if not _due(spec, Role.TRAINER, restarts, max(s.ended.at for s in trainers if s.ended), now):
        return []
    every = tuple(s.index for s in trainers)
    return [Start(Role.TRAINER, every, again=True, disrupted=ended.disrupted, cause=cause)]


def _repeatable_cause(ended: Ended, step: int) -> str:
    """The end's error and the step, without the log's place, as long as a status holds; empty if another start may not
    meet it."""
    if ended.disrupted or not is_repeatable(ended.reason):
        return ""
    return f"step {step}: {ended.reason.partition('; see ')[0]}"[:1024]


def _servers(spec: Spec, processes: Sequence[ProcessState], restarts: Restarts, now: float) -> list[Action]:
    """Actions for servers, which restart independently, whatever the exit code; a multi-process one restarts when any
    of its processes ends. When the budget is used up, the job continues as long as another server of the role, and of
    the same teacher, works or may come to work."""
    actions: list[Action] = []
    healthy = _healthy_indices(spec, processes, restarts, now)
    for index, group in groupby(processes, key=lambda s: s.index):
        server = list(group)
        role, ended = server[0].role, [s for s in server if s.ended]
        whole = alike(spec, role, index, healthy)
        if any(s.started is None for s in server):
            actions.append(Start(role, (index,)))
            continue
        if not ended:
            continue
        first, end = _first_failure(server)
        if not whole and (finish := _budget_exhausted(spec, first, end, restarts)) is not None:
            return [finish]
        if running := [s for s in server if not s.ended]:
            actions += [Kill(role, index, f"its peer {first.name} {end.reason}", s.rank) for s in running]
        elif _due(spec, role, restarts, max(s.ended.at for s in ended if s.ended), now):
            start = Start(role, (index,), again=True, disrupted=end.disrupted)
            actions.append(start)
            restarts = restarts.after(now, budget(spec, role)[1], counts=start.counts)
    return actions


def _healthy_indices(spec: Spec, servers: Sequence[ProcessState], restarts: Restarts, now: float) -> set[int]:
    """Indices of servers of which all processes work or may come to work."""
    broken = {s.index for s in servers if s.ended}
    firsts = [s for s in servers if s.rank == 0]
    return {s.index for s in firsts if s.ready or _may_load(spec, s.role, restarts, now)} - broken


def _may_load(spec: Spec, role: Role, restarts: Restarts, now: float) -> bool:
    """True if what starts may be on its first start of the window. Later it may be a server that fails each time, and
    several of those would keep a job alive for ever, each while another one starts."""
    return not restarts.failures or now < restarts.since + spec.section(role).startup_timeout_seconds


def _due(spec: Spec, role: Role, restarts: Restarts, ended: float, now: float) -> bool:
    """True once the backoff after an end is over; after the last restart, where the clock of the process's node is
    ahead."""
    since = ended if ended <= now else restarts.last
    return now >= since + restarts.pause(budget(spec, role)[0])


def pause_left(
    spec: Spec, states: Sequence[ProcessState], restarts: Mapping[Role, Restarts], now: float
) -> float | None:
    """Seconds until the first pause after an end is over; None where no process waits for its restart."""
    pauses = {role: current_window(spec, restarts, role, now).pause(budget(spec, role)[0]) for role in Role}
    waits = [s.ended.at + pauses[s.role] - now for s in states if s.ended]
    return min((wait for wait in waits if wait > 0), default=None)


def _late(spec: Spec, process: ProcessState, now: float) -> Kill | None:
    limit = spec.section(process.role).startup_timeout_seconds
    if process.started is None or process.ready or process.ended or now < process.started + limit:
        return None
    field = f"spec.{process.role.value}.startupTimeoutSeconds"
    return Kill(process.role, process.index, f"did not answer within {limit} s ({field})", process.rank)
