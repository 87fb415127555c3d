"""Work directory of a run: lock, state of an earlier run, files written by the host."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from rlhf_api.contract import prediction, timeline
from rlhf_api.contract.run import RUN_FILE, RunConfig, with_digests
from rlhf_api.contract.status import JobStatus
from rlhf_api.contract.teachers import named_models
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.sizes import LOADED
from rlhf_api.host.redaction import masked
from rlhf_api.sections.samples import SAMPLES
from rlhf_api.spec import Spec
from rlhf_store.durable import make_durable

from . import provenance
from .changes import Change, changed_fields, refused_changes

Record = TypeVar("Record", bound=BaseModel)
CONFIG, STATUS, METRICS, CURVE, POLICY = RUN_FILE, "status.json", "metrics.jsonl", "reward.png", "policy"
LOGS, EVALUATIONS, LOCK = "logs", "evaluation.jsonl", ".lock"
STATUS_SECONDS = 1.0
_REPLACED = (
    METRICS,
    EVALUATIONS,
    SAMPLES,
    timeline.FILE,
    POLICY,
    "critic",
    f"{POLICY}-adapter",
    "critic-adapter",
    "initial",
)
"""Outputs that a run begins anew."""
_OUTPUTS = (
    STATUS,
    CURVE,
    *_REPLACED,
    "tensorboard",
    "wandb",
    "run-id",
    LOGS,
    provenance.FILE,
    prediction.FILE,
    "checkpoints",
    CONFIG,
)
"""All outputs of a run; the configuration, which identifies a run, is removed last."""


class Earlier(NamedTuple):
    """The run that is resumed: its last status, if that can be read, and what is not as it was."""

    status: JobStatus | None
    changes: list[Change]


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Locks the work directory, created if missing, and removed again if the job in it turns out to be invalid.

    Raises:
        InvalidJob: another run holds it, or it cannot be made.
    """
    is_new = not workdir.exists()
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock = (workdir / LOCK).open("w")
    except OSError as error:
        raise InvalidJob([Problem(str(workdir), f"cannot be written: {error.strerror}")]) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another `rlhf run` is using it now; wait for its end or give another --workdir"
            raise InvalidJob([Problem(str(workdir), message)]) from None
        except OSError as error:  # of some network file systems
            message = f"cannot be locked: {error.strerror}; give a --workdir on another file system"
            raise InvalidJob([Problem(str(workdir), message)]) from None
        try:
            yield
        except InvalidJob:
            if is_new and not (workdir / CONFIG).exists():  # no process has been started in it
                shutil.rmtree(workdir)
            raise


def is_held(workdir: Path) -> bool:
    """True while an `rlhf run` holds the lock of the work directory; also where that cannot be told."""
    try:
        with (workdir / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False


def prepare(
    workdir: Path, config: RunConfig, *, resume: bool, overwrite: bool, accept_changes: bool = False
) -> Earlier | None:
    """Prepares the work directory for this run; returns the run that it resumes, if any. With `accept_changes` that may
    have had other data and rewards.

    Raises:
        InvalidJob: it holds an earlier run and neither `resume` nor `overwrite` is set, or that run is another one, or
            it holds what is of no run and has an output's name.
    """
    spec = config.spec
    if not (workdir / CONFIG).exists():
        if others := [name for name in _REPLACED if (workdir / name).exists()]:
            message = (
                f"holds {', '.join(others)}, which is of no run, and which this one would replace; "
                "move it away, or give another --workdir"
            )
            raise InvalidJob([Problem(str(workdir), message)])
        if resume and spec.checkpoint.store is None:
            message = "holds no run to go on from; leave --resume out to start one, or name its --workdir"
            raise InvalidJob([Problem(str(workdir), message)])
        (workdir / LOGS).mkdir(exist_ok=True)
        return None
    if resume:
        changes = read_changes(workdir, config)
        if problems := refused_changes(changes, str(workdir), accept=accept_changes):
            raise InvalidJob(problems)
        (workdir / LOGS).mkdir(exist_ok=True)
        return Earlier(read(workdir / STATUS, JobStatus), changes)
    if not overwrite:
        raise InvalidJob([Problem(str(workdir), _earlier(read(workdir / STATUS, JobStatus)))])
    _remove_outputs(workdir, spec)
    (workdir / LOGS).mkdir(exist_ok=True)
    return None


def moved(workdir: Path, before: os.stat_result) -> str:
    """Error message about a work directory that was another one, `before`; empty if it is the same."""
    try:
        if os.path.samestat(before, workdir.stat()):
            return ""
    except FileNotFoundError:
        pass
    except OSError:  # of a file system that fails for a moment
        return ""
    return f"the work directory {workdir} was moved or deleted while the run used it; put it back"


def _earlier(status: JobStatus | None) -> str:
    """Description of an earlier run's files, and the ways to run again, the one without loss first."""
    anew, elsewhere = "--overwrite to delete it and start anew", "--workdir DIR to run elsewhere"
    if status is None or status.completion_time is None:  # killed: it may have saved more than it wrote of
        return f"an earlier run is in it; add --resume to go on from its newest checkpoint, {elsewhere}, or {anew}"
    what = f"an earlier run is in it, {status.phase} at step {status.step} of {status.total_steps}"
    if status.last_checkpoint is None:
        return f"{what}, which saved no checkpoint; add {anew}, or {elsewhere}"
    step = status.last_checkpoint.step
    return f"{what}; add --resume to go on from its checkpoint of step {step}, {elsewhere}, or {anew}"


def read_changes(workdir: Path, config: RunConfig) -> list[Change]:
    """Differences from the configuration of the run in the directory."""
    before = read(workdir / CONFIG, RunConfig)
    if before is None:
        message = "is not the configuration of a run that this version can read; use another --workdir"
        raise InvalidJob([Problem(str(workdir / CONFIG), message)])
    renamed = [Change("metadata.name", before.job, config.job)] if before.job != config.job else []
    changes = renamed + changed_fields(before.spec, with_digests(config.spec))
    named = {change.field for change in changes}
    return changes + [
        each for each in provenance.changed_since(workdir, config.spec) if each.field not in named
    ]


def _remove_outputs(workdir: Path, spec: Spec) -> None:
    outputs = [workdir / name for name in _OUTPUTS]
    named = [name for _, _, name in named_models(spec, (*LOADED, "tokenizer"))]
    named += [source.path for source in spec.data.training_sources()]
    for used in (Path(path).resolve() for path in named):
        if any(used.is_relative_to(output.resolve()) for output in outputs):
            message = "this job reads it, and --overwrite would delete it; use another --workdir"
            raise InvalidJob([Problem(str(used), message)])
    for output in outputs:
        if output.is_dir() and not output.is_symlink():
            shutil.rmtree(output)
        else:
            output.unlink(missing_ok=True)


def write_config(workdir: Path, config: RunConfig) -> None:
    """Writes the configuration, without which a run cannot be resumed: it survives a loss of power. Environment
    variables reach processes by their environment, and those that are secrets are left out; of files that the job
    carries only digests are in it. Raises OSError with the file."""
    env = masked({"env": config.spec.env})["env"]
    public = with_digests(config.spec).model_copy(update={"env": env})
    write(workdir / CONFIG, config.model_copy(update={"spec": public}), written=make_durable)
    make_durable(workdir / CONFIG)  # its name too


def write(file: Path, record: BaseModel, written: Callable[[Path], None] = lambda _new: None) -> None:
    """Writes JSON with the contract's keys; a reader sees the old file or the new one. `written` gets the new one
    before it has its name. Raises OSError with the file."""
    new = file.with_name(f".{file.name}.new")
    try:
        new.write_text(record.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")
        written(new)
        new.replace(file)
    except OSError as error:  # a full disk's has no name
        raise OSError(error.errno, error.strerror, str(file)) from None


class StatusFile:
    """Writes a run's status at most once a second, and its last one. A failure is reported once, until a write
    succeeds: the run goes on, as its checkpoints may be elsewhere."""

    def __init__(self, file: Path, tell: Callable[[str], None]) -> None:
        self._file, self._tell, self._written, self._reported = file, tell, 0.0, ""

    def put(self, status: JobStatus, *, last: bool) -> None:
        if not last and time.monotonic() < self._written + STATUS_SECONDS:
            return
        self._written, failed = time.monotonic(), ""
        try:
            write(self._file, status)
        except OSError as error:
            failed = f"{self._file} cannot be written: {error.strerror}"
        if failed not in ("", self._reported):
            self._tell(failed if last else f"{failed}; the run goes on")
        self._reported = failed


def read(file: Path, model: type[Record]) -> Record | None:
    """A record of a work directory; None if it is missing, or of a version that this one cannot read."""
    try:
        return model.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None
