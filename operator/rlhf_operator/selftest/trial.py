"""A selftest's run: both halves, independent of where they run, and its observations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_api.contract.run import roles_of
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from .derived import BASELINE, Overrides, first_half, second_half
from .left import Parameters, RunResults
from .watch import Kill, Watch

LEARNING_STEPS = 20
"""Number of steps of the second half on its own reward alone."""
ORDER = (Role.ENVIRONMENT, Role.REWARD, Role.REFERENCE, Role.TRAINER, Role.GENERATOR)
"""Order in which roles are killed: the slowest to start last."""
STARTS = 2
"""Deadline of a step, in starts of the slowest role."""


class Interrupted(Exception):
    """The user stopped the run."""


class Trial(Protocol):
    """One run of a job in two halves, on a host or a cluster."""

    async def half(self, overrides: Overrides, watch: Watch) -> str:
        """Runs the job with these overrides, the second time resuming from its checkpoint, and executes the decisions
        of `watch`.

        Returns the cause of an unexpected end, or ''. Raises Interrupted if the user stopped it; no process is left
        then.
        """

    async def read_results(self, models: Sequence[str]) -> RunResults:
        """Results of the run so far, with the parameters of these models."""


@dataclass(frozen=True)
class Observations:
    """Observations of a run: `stopped` and `wanted` are the step at which it was stopped and the number that it should
    reach, None if it ended before; `cause`: why it ended unexpectedly, or ''."""

    kills: Mapping[Role, Kill]
    still: Sequence[Parameters]
    """First and last parameters at learning rate 0; empty without a snapshot."""
    stopped: int | None
    wanted: int | None
    cause: str
    lines: Sequence[Mapping[str, Any]]
    """Lines of metrics.jsonl."""
    ended: int
    state: Mapping[str, Any] | None
    """Step of the newest snapshot, and its state."""


def roles_to_kill(spec: Spec) -> list[Role]:
    """Roles to kill, in order: all that the job has processes for."""
    return [role for role in ORDER if role in roles_of(spec)]


def step_deadline(spec: Spec) -> float:
    """Deadline of a step, seconds."""
    slowest = max(spec.section(role).startup_timeout_seconds for role in roles_of(spec))
    return STARTS * slowest


async def carry_out(spec: Spec, trial: Trial) -> Observations:
    """Runs both halves of a job.

    Raises:
        Interrupted: the user stopped it; no process is left.
    """
    watch = Watch(victims=roles_to_kill(spec), first=BASELINE, patience=step_deadline(spec))
    cause = await trial.half(first_half(spec), watch)
    left = first = await trial.read_results([model.name for model in spec.graph.trained])
    stopped = target_step = None
    if not cause and first.snapshots:
        stopped = first.snapshots[-1][0]
        target_step = stopped + 1 + LEARNING_STEPS
        again = Watch(victims=(), first=None, patience=step_deadline(spec))
        cause = await trial.half(second_half(spec, target_step), again)
        left = await trial.read_results(())
    return Observations(
        kills={kill.role: kill for kill in watch.kills},
        still=first.snapshots,
        stopped=stopped,
        wanted=target_step,
        cause=cause,
        lines=left.lines,
        ended=left.snapshots[-1][0] if left.snapshots else 0,
        state=left.state,
    )
