"""The run of a selftest: both halves, wherever they run, and what is to be seen of them afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_api.algorithms import graph_of
from rlhf_api.roles import Role
from rlhf_api.run import roles_of
from rlhf_api.spec import Spec

from .derived import BASELINE, Overrides, first_half, second_half
from .left import Left, Parameters
from .watch import Kill, Watch

LEARNING_STEPS = 20
"""Steps of the second half on its own reward alone."""
ORDER = (Role.REWARD, Role.REFERENCE, Role.TRAINER, Role.GENERATOR)
"""In which roles are killed: the slowest to start last."""
STARTS = 2
"""A step may take as long as so many starts of the slowest role."""


class Interrupted(Exception):
    """The user stopped it."""


class Trial(Protocol):
    """One run of a job, somewhere, in two halves."""

    async def half(self, overrides: Overrides, watch: Watch) -> str:
        """Runs the job with these overrides, the second time from its checkpoint on, and does what `watch` decides.

        Returns why it ended otherwise than it should, else nothing. Raises Interrupted where the user stopped it;
        nothing of it is left running.
        """

    async def look(self, models: Sequence[str]) -> Left:
        """What the run has left so far, with the parameters of these models."""


@dataclass(frozen=True)
class Seen:
    """What a run left: `stopped` and `wanted` are the step at which it was stopped and the number that it should reach,
    None where it ended before; `cause` says why it ended otherwise than it should, empty where it did not."""

    kills: Mapping[Role, Kill]
    still: Sequence[Parameters]
    """The first and the last of learning rate 0; none where no snapshot was made."""
    stopped: int | None
    wanted: int | None
    cause: str
    lines: Sequence[Mapping[str, Any]]
    """Of metrics.jsonl."""
    ended: int
    state: Mapping[str, Any] | None
    """Step of the newest snapshot, and what it holds beside tensors."""


def victims(spec: Spec) -> list[Role]:
    """Roles that are killed, in their order: all that the job has processes for."""
    return [role for role in ORDER if role in roles_of(spec)]


def patience(spec: Spec) -> float:
    """Seconds for a step."""
    slowest: int = max(getattr(spec, role.value).startup_timeout_seconds for role in roles_of(spec))
    return STARTS * slowest


async def carry_out(spec: Spec, trial: Trial) -> Seen:
    """Runs both halves of a job.

    Raises:
        Interrupted: the user stopped it; nothing of it is left running.
    """
    watch = Watch(victims=victims(spec), first=BASELINE, patience=patience(spec))
    cause = await trial.half(first_half(spec), watch)
    left = first = await trial.look([model.name for model in graph_of(spec).trained])
    stopped = wanted = None
    if not cause and first.snapshots:
        stopped = first.snapshots[-1][0]
        wanted = stopped + 1 + LEARNING_STEPS
        again = Watch(victims=(), first=None, patience=patience(spec))
        cause = await trial.half(second_half(spec, wanted), again)
        left = await trial.look(())
    return Seen(
        kills={kill.role: kill for kill in watch.kills},
        still=first.snapshots,
        stopped=stopped,
        wanted=wanted,
        cause=cause,
        lines=left.lines,
        ended=left.snapshots[-1][0] if left.snapshots else 0,
        state=left.state,
    )
