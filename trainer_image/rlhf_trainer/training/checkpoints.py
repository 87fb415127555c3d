"""A run's checkpoints: it goes on from the newest intact one, and saves all that a later start needs."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from rlhf_api.contract import prediction, timeline
from rlhf_api.contract.report import CheckpointStatus
from rlhf_api.contract.run import EXIT_SUSPENDED
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.samples import SAMPLES
from rlhf_store.errors import DamagedSnapshot
from rlhf_store.manifest import Entry, part_names, split_lines

from ..checkpoint.reading import Snapshot
from ..checkpoint.rng import restore_generators, save_generators
from ..checkpoint.saver import Saver
from ..metrics.files import EVALUATIONS, STEPS
from ..metrics.pictures import draw_picture
from ..ranks.context import TrainerContext
from .monitor import Monitor
from .task import Task

log = logging.getLogger(__name__)

DATA_CHANGED = 2048
"""Maximum length of the report of changed data."""
_WRITTEN = (SAMPLES, STEPS, EVALUATIONS, timeline.FILE, prediction.FILE)
"""Files of the work directory that every snapshot has, so that a run can be read from its store alone."""


@dataclass(frozen=True)
class Checkpoints:
    """State of the task, of the health rules and of every rank's random generators. Methods are collectives."""

    ctx: TrainerContext
    task: Task
    monitor: Monitor
    saver: Saver
    files: Mapping[str, bytes]
    """Blobs that every snapshot of the run has; see `Task.export_files`."""

    def restore(self, earlier: Sequence[Entry]) -> tuple[int, float | None]:
        """Restores the newest intact snapshot; returns its step and its evaluation, or 0 and None without one. After a
        rollback to it, data not taken yet is reshuffled."""
        ranks, url = self.ctx.ranks, self.saver.archive.store.url
        self.ctx.report(activity="restoring")
        for entry in reversed(earlier):
            try:
                snapshot = Snapshot.open(ranks, self.saver.archive, entry)
                self.task.restore(snapshot)
                restore_generators(ranks, snapshot.tensors("generators"))
            except DamagedSnapshot as error:
                log.error(
                    "DAMAGED CHECKPOINT of step %d, falling back to the one before: %s", entry.step, error
                )
                continue
            self._restore_files(snapshot)
            self.monitor.restore(cast(dict[str, Any], snapshot.state.get("health", {})))
            self._tell_changed_data(cast(dict[str, int], snapshot.state.get("data", {})), snapshot.step)
            self.task.reorder(self.monitor.rollbacks - snapshot.stored.manifest.rollbacks)
            self.saver.knows(snapshot.stored)
            saved = CheckpointStatus(step=snapshot.step, time=snapshot.time, uri=url)
            self.ctx.report(step=snapshot.step, last_checkpoint=saved)
            log.info("resumed from the checkpoint of step %d in %s", snapshot.step, url)
            return snapshot.step, entry.reward
        if earlier:
            steps = ", ".join(str(entry.step) for entry in earlier)
            message = f"every checkpoint in {url} is damaged (of steps {steps}), see the log"
            raise InvalidJob(
                [Problem("spec.checkpoint.store", f"{message}; begin a new run in another store")]
            )
        self.task.reorder(self.monitor.rollbacks)
        return 0, None

    def _restore_files(self, snapshot: Snapshot) -> None:
        """Writes them where the work directory is a new one; of another run's snapshot its samples alone, as its
        figures are not this run's. A damaged file is left out."""
        if not self.ctx.ranks.first:
            return
        origin = self.ctx.spec.checkpoint.start_from
        is_own = origin is None or snapshot.step > origin.step
        for name in _WRITTEN if is_own else (SAMPLES,):
            file = self.ctx.workdir / name
            if name in snapshot.blobs and not file.exists():
                try:
                    file.write_bytes(snapshot.stored.blob(name))
                except DamagedSnapshot as error:
                    log.warning("%s begins anew: %s", name, error)

    def _tell_changed_data(self, before: Mapping[str, int], step: int) -> None:
        """Warns, also the host, about sources whose rows are others than those of the snapshot, which has none if it is
        of an earlier release. Sources that only one of both has are a change of the manifest."""
        changed = [path for path, rows in self.ctx.data.items() if before.get(path, rows) != rows]
        if changed and self.ctx.ranks.first:
            message = (
                f"rows have changed since the checkpoint of step {step}, and the run goes on with those that are there "
                f"now; for the old ones, put them back and use `rlhf clone --from-step {step}`: {', '.join(changed)}"
            )
            log.warning("%s", message)
            self.ctx.report(data_changed=message[:DATA_CHANGED])

    def save(self, step: int, reward: float | None) -> None:
        """Returns when everything is copied; the upload continues in the background. `reward`: the step's evaluation,
        which a checkpoint of it may have already."""
        if self.saver.busy:
            self.finish()
        self.ctx.report(activity="saving")
        ranks = self.ctx.ranks
        groups = {**self.task.groups(), "generators": save_generators(ranks).items()}
        state = {**self.task.state(), "health": self.monitor.state(), "data": dict(self.ctx.data)}
        blobs: dict[str, Callable[[], bytes]] = {}
        if ranks.first:
            files = {**self.files, **dict(self._written())}
            blobs = {**self.task.blobs(), **{name: partial(bytes, data) for name, data in files.items()}}
        updates = self.task.updates()
        self.saver.begin(step, state, groups, blobs, reward, good=self.monitor.good, updates=updates)
        if ranks.first:
            draw_picture(self.ctx.workdir, self.ctx.job)

    def _written(self) -> Iterator[tuple[str, bytes]]:
        """The files' parts: those of the snapshot before are not uploaded again."""
        for file in (self.ctx.workdir / name for name in _WRITTEN):
            if file.exists():
                yield from zip(part_names(file.name), split_lines(file.read_bytes()), strict=False)

    def suspend(self, step: int, reward: float | None) -> int:
        """Saves the step and waits until it is stored; returns the exit code of a suspended run."""
        self.save(step, reward)
        self.finish()
        return EXIT_SUSPENDED

    def finish(self) -> None:
        """Waits until no upload is under way."""
        self.ctx.report(activity="waiting for the checkpoint store")
        self.saver.finish()
