"""The run of a selftest: both halves in one work directory, and what is to be seen of them afterwards."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.algorithms import graph_of
from rlhf_api.manifest import RLHFJob
from rlhf_api.roles import Role
from rlhf_api.run import RunConfig, roles_of
from rlhf_api.spec import Spec

from ..archive import open_store
from ..local import workdir
from ..local.host import Host
from ..local.metrics import Metrics
from ..local.ports import place
from ..local.processes import Command
from ..local.progress import Lines
from .derived import BASELINE, Overrides, first_half, second_half
from .kills import Kill, Watch
from .weights import Digests, digests

if TYPE_CHECKING:
    from rlhf_store.archive import Snapshot

LEARNING_STEPS = 20
"""Steps of the second half on its own reward alone."""
ORDER = (Role.REWARD, Role.REFERENCE, Role.TRAINER, Role.GENERATOR)
"""In which roles are killed: the slowest to start last."""
STARTS = 2
"""A step may take as long as so many starts of the slowest role."""

Parameters = tuple[int, Digests]
"""Step of a snapshot, and its trained parameters."""


class Interrupted(Exception):
    """The user stopped it."""


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


def carry_out(
    spec: Spec, derive: Callable[[Overrides], RLHFJob], folder: Path, shown: Lines, make: Command
) -> Seen:
    """Runs both halves of a job in an empty folder; `derive` gives the job with these overrides.

    Raises:
        Interrupted: the user stopped it; nothing of it is left running.
    """
    models = [model.name for model in graph_of(spec).trained]
    patience = STARTS * max(getattr(spec, role.value).startup_timeout_seconds for role in roles_of(spec))
    lines = Metrics(folder / workdir.METRICS)
    watch = Watch(shown, victims=victims(spec), first=BASELINE, patience=patience)
    cause = _half(derive(first_half(spec)), folder, watch, make, resume=False)
    snapshots = _snapshots(folder)
    still = [(each.step, digests(each, models)) for each in (*snapshots[:1], *snapshots[-1:])]
    stopped = wanted = None
    if not cause and snapshots:
        stopped = snapshots[-1].step
        wanted = stopped + 1 + LEARNING_STEPS
        again = Watch(shown, victims=(), first=None, patience=patience)
        cause = _half(derive(second_half(spec, wanted)), folder, again, make, resume=True)
        snapshots = _snapshots(folder)
    return Seen(
        kills={kill.role: kill for kill in watch.kills},
        still=still,
        stopped=stopped,
        wanted=wanted,
        cause=cause,
        lines=lines.new(),
        ended=snapshots[-1].step if snapshots else 0,
        state=snapshots[-1].state if snapshots else None,
    )


def _half(job: RLHFJob, folder: Path, watch: Watch, make: Command, *, resume: bool) -> str:
    """Runs it; returns why it ended otherwise than it should, else nothing."""
    before = workdir.prepare(folder, job.spec, resume=resume, overwrite=False)
    config = RunConfig(job=job.metadata.name, spec=job.spec, workdir=str(folder.resolve()), resume=resume)
    host = watch.host = Host(config, watch, place(config, None), before=before, make=make)
    status = asyncio.run(host.run())
    if host.stops > watch.asked:
        raise Interrupted
    if watch.failed:
        return watch.failed
    return "" if status.phase == ("Suspended" if watch.asked else "Succeeded") else host.outcome


def _snapshots(folder: Path) -> "list[Snapshot]":
    """Those of the run, oldest first."""
    if not (folder / "checkpoints").is_dir():
        return []
    archive = open_store.archive(str(folder))
    return [archive.open(entry) for entry in archive.entries()]
