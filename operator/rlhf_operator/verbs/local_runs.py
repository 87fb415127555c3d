"""`rlhf status`, `list` and `logs` of runs of this machine, from what is in their work directories."""

import argparse
import datetime
import sys
import time
from pathlib import Path

from rich.text import Text

from rlhf_api.contract.run import RunConfig
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob, Problem

from ..console.exits import Misuse
from ..console.text import age, columns, one_line
from ..local.display.metrics import read_appended
from ..local.records import workdir
from .argument_types import is_run
from .format import change
from .jobs import is_finished
from .status_view import describe_status
from .terminal import LiveView, put

POLL_SECONDS = 1.0
_HEAD = ("NAME", "PHASE", "STEP", "STEPS", "REWARD", "KL", "RESTARTS", "BEGAN")


def show_status(options: argparse.Namespace) -> int:
    """`rlhf status RUN`; returns the exit code."""
    folder: Path = options.name
    if options.output == "json":
        put((folder / workdir.STATUS).read_text(), sys.stdout)
        return 0
    status = _read(folder)
    if not options.watch:
        put(_page(folder, status), sys.stdout)
        return 0
    with LiveView(sys.stdout) as view:
        while True:
            view.show(_page(folder, status) if sys.stdout.isatty() else Text(), change(status))
            if is_finished(status) or not workdir.is_held(folder):
                return 0 if status.phase == "Succeeded" else 1
            time.sleep(POLL_SECONDS)
            status = _read(folder)


def list_runs(options: argparse.Namespace) -> int:
    """`rlhf list RUNS`: a line for each run in the folder, the newest first; returns the exit code."""
    if options.all_namespaces or options.output:
        raise Misuse("RUNS lists runs of this machine: leave out --all-namespaces and --output")
    folder: Path = options.runs
    runs = (
        [(each.name, _read(each)) for each in sorted(folder.iterdir()) if is_run(each)]
        if folder.is_dir()
        else []
    )
    if not runs:
        raise InvalidJob([Problem(str(folder), "holds no run of this machine")])
    runs.sort(key=lambda named: named[1].start_time or "", reverse=True)
    now = datetime.datetime.now(datetime.UTC)
    put("\n".join(columns([_HEAD, *(_row(folder, name, status, now) for name, status in runs)])), sys.stdout)
    return 0


def print_logs(options: argparse.Namespace) -> int:
    """`rlhf logs RUN`: the logs of a role's processes, each line after its process if there are several; returns the
    exit code."""
    if options.previous:
        raise Misuse("--previous is for pods: a log of this machine has all starts of its process")
    files = _logs(options.name, options.role, options.index)
    prefixes = [f"{file.stem} | " if len(files) > 1 else "" for file in files]
    offsets = []
    for file, prefix in zip(files, prefixes, strict=True):
        content = file.read_bytes()
        offsets.append(len(content))
        lines = content.decode(errors="replace").splitlines()
        for line in lines if options.tail is None else lines[len(lines) - min(options.tail, len(lines)) :]:
            put(prefix + one_line(line), sys.stdout)
    while options.follow and not is_finished(_read(options.name)) and workdir.is_held(options.name):
        time.sleep(POLL_SECONDS)
        for i, (file, prefix) in enumerate(zip(files, prefixes, strict=True)):
            offsets[i], lines = _appended(file, offsets[i])
            for line in lines:
                put(prefix + one_line(line), sys.stdout)
    return 0


def _appended(file: Path, offset: int) -> tuple[int, list[str]]:
    """The whole lines after the offset, and where they end. The beginning, where the log has moved to an older file."""
    end, whole = read_appended(file, offset if file.stat().st_size >= offset else 0)
    return end, whole.decode(errors="replace").splitlines()


def _logs(folder: Path, role: str, index: int | None) -> list[Path]:
    """Raises InvalidJob if there is none."""
    pattern = f"{'*' if role == 'all' else role}-{'*' if index is None else index}.log"
    files = sorted((folder / workdir.LOGS).glob(pattern))
    if not files:
        names = ", ".join(sorted(file.stem for file in (folder / workdir.LOGS).glob("*.log"))) or "none"
        raise InvalidJob([Problem(str(folder / workdir.LOGS), f"has no log of this role; it has {names}")])
    return files


def _page(folder: Path, status: JobStatus) -> Text:
    now = datetime.datetime.now(datetime.UTC)
    about = [f"in {folder}"]
    if status.start_time:
        about.append(f"began {age(status.start_time, now)} ago")
    if not is_finished(status) and not workdir.is_held(folder):
        about.append("its `rlhf run` has died; go on with --resume")
    return describe_status(_name(folder), about, status, [], now)


def _row(folder: Path, name: str, status: JobStatus, now: datetime.datetime) -> tuple[str, ...]:
    figures = ("" if value is None else f"{value:.4g}" for value in (status.reward, status.kl))
    dead = not is_finished(status) and not workdir.is_held(folder / name)
    began = age(status.start_time, now) if status.start_time else ""
    phase = f"{status.phase} (died)" if dead else status.phase
    return (name, phase, str(status.step), str(status.total_steps), *figures, str(status.restarts), began)


def _name(folder: Path) -> str:
    config = workdir.read(folder / workdir.CONFIG, RunConfig)
    return config.job if config else folder.name


def _read(folder: Path) -> JobStatus:
    status = workdir.read(folder / workdir.STATUS, JobStatus)
    if status is None:
        message = "is not the status of a run that this version can read"
        raise InvalidJob([Problem(str(folder / workdir.STATUS), message)])
    return status
