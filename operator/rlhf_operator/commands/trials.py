"""Trials of a sweep on this machine: which of them are left, and their runs, some at once."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rlhf_api.contract.run import RunConfig
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.job import RLHFJob

from ..console.exits import INTERRUPTED, print_line
from ..local.records import workdir
from ..local.records.provenance import PACKAGE
from ..local.resources import gpus
from ..local.resources.placement import decide
from ..local.run_process import POLL_SECONDS, RunProcess
from ..status.condition import reason
from ..supervision.restart_policy import UNHEALTHY

_SHOWN_CHANGES = 3


class Trial(NamedTuple):
    """One run of a sweep: its name as in `--trial`, its job, and its overrides besides those of the sweep."""

    name: str
    job: RLHFJob
    overrides: tuple[str, ...]


def divide_gpus(count: int) -> list[list[str]]:
    """The GPUs of trials that run at once, which are divided between them; none on a machine without."""
    present = gpus.present(os.environ)
    if present and count > len(present):
        message = f"this machine has {len(present)} GPUs, and each trial needs one; got {count}"
        raise InvalidJob([Problem("--max-parallel", message)])
    share = len(present) // count
    return [present[i * share : (i + 1) * share] for i in range(count)]


def unfinished_trials(folder: Path, trials: Sequence[Trial], present: Sequence[str]) -> list[Trial]:
    """The trials that have not ended. Raises InvalidJob if a work directory holds another run, or is in use, and if
    there are too few GPUs."""
    unfinished: list[Trial] = []
    memory = gpus.memory(present)
    problems: dict[str, Problem] = {}
    for trial in trials:
        place = folder / trial.job.metadata.name
        try:
            decide(trial.job.spec, present, model_sizes(trial.job.spec), memory)
            if not (place / workdir.CONFIG).is_file() or not _has_ended(place, trial.job):
                unfinished.append(trial)
        except InvalidJob as error:
            problems |= {str(problem): problem for problem in error.problems}
    if problems:
        raise InvalidJob(list(problems.values()))
    return unfinished


def _has_ended(place: Path, job: RLHFJob) -> bool:
    """True if the run in the directory ended for good: after its last step, or by a rule of spec.health. Raises
    InvalidJob if it is of another job."""
    config = RunConfig(job=job.metadata.name, spec=job.spec, workdir=str(place.resolve()), resume=True)
    changes = workdir.read_changes(place, config)
    if changes := [change for change in changes if not change.field.startswith(PACKAGE)]:
        fields = "; ".join(map(str, changes[:_SHOWN_CHANGES]))
        message = f"holds a trial of another sweep ({fields}); give another --runs DIR, or remove it"
        raise InvalidJob([Problem(str(place), message)])
    if workdir.is_held(place):
        raise InvalidJob([Problem(str(place), "another `rlhf run` is using it now; wait for its end")])
    status = workdir.read(place / workdir.STATUS, JobStatus)
    return status is not None and (status.phase == "Succeeded" or reason(status, "Failed") == UNHEALTHY)


class Trials:
    """Trials that run, as many at once as there are slots."""

    def __init__(
        self,
        folder: Path,
        trials: Sequence[Trial],
        slots: Sequence[Sequence[str]],
        arguments: Callable[[Trial], list[str]],
    ) -> None:
        """`arguments`: of `rlhf run`, without its work directory."""
        self._folder, self._arguments = folder, arguments
        self._waiting, self._free = deque(trials), deque(slots)
        self._running: list[tuple[Trial, RunProcess, Sequence[str]]] = []
        self._is_stopped = False
        self.failed = False
        """True if a trial failed, and not by a rule of spec.health."""

    def run(self) -> None:
        """Returns when no trial runs and none is left."""
        while self._waiting or self._running:
            while self._waiting and self._free:
                self._start(self._waiting.popleft(), self._free.popleft())
            time.sleep(POLL_SECONDS)
            self._running = [each for each in self._running if not self._ended(*each)]

    def stop(self) -> None:
        """Starts no more, and stops those that run after a checkpoint, or at a second call at once."""
        self._is_stopped = True
        self._waiting.clear()
        for _, process, _ in self._running:
            process.stop()

    def _start(self, trial: Trial, present: Sequence[str]) -> None:
        place = self._folder / trial.job.metadata.name
        arguments = [*self._arguments(trial), "--workdir", str(place)]
        if (place / workdir.CONFIG).is_file():
            arguments.append("--resume")
        environ = {gpus.VISIBLE: ",".join(present)} if present else {}
        process = RunProcess(arguments, environ)
        self._running.append((trial, process, present))
        if self._is_stopped:  # in the midst of this
            process.stop()

    def _ended(self, trial: Trial, process: RunProcess, present: Sequence[str]) -> bool:
        """Prints what it has printed; true if it has ended."""
        name, code = trial.job.metadata.name, process.code
        for line in process.new_lines():
            print_line(f"{name} | {line}", sys.stdout)
        if code is None:
            return False
        self._free.append(present)
        status = workdir.read(self._folder / name / workdir.STATUS, JobStatus)
        if status is not None and reason(status, "Failed") == UNHEALTHY:
            print_line(f"{name} was ended by a rule of spec.health", sys.stdout)
        elif code not in (0, INTERRUPTED):
            self.failed = True
        return True
