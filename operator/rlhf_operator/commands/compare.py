"""`rlhf compare`: prints what differs between runs of this machine, and what came of each."""

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, Self

from rlhf_api.contract.evaluations import list_means
from rlhf_api.contract.run import PictureRequest, RunConfig
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob, Problem, show

from ..console.exits import Misuse, print_line
from ..console.subcommands import Commands, add_command
from ..console.text import columns, span
from ..console.trainer_packages import run_module
from ..local.display.metrics import read_figures
from ..local.records import workdir
from ..page.answers.differences import list_differences
from ..page.folder.run_folder import RunFolder
from ..status.condition import reason

Line = Mapping[str, Any]
CURVES = ("reward_mean", "kl_mean", "loss", "response_length_mean", "tokens", "seconds")
"""Figures of a step in the file of `--csv`."""
ABSENT = "-"
MOST_COLUMNS = 4
"""Runs that stand side by side on a wide terminal."""


class Run(NamedTuple):
    """A work directory as it is now: as the page reads it, its last status, lines of steps and of evaluations."""

    name: str
    folder: RunFolder
    status: JobStatus | None
    steps: list[Line]
    evaluations: list[Line]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises InvalidJob for a directory without a run of this version."""
        if workdir.read(folder / workdir.CONFIG, RunConfig) is None:
            message = f"holds no run: {workdir.CONFIG} is missing, or of another version"
            raise InvalidJob([Problem(str(folder), message)])
        status = workdir.read(folder / workdir.STATUS, JobStatus)
        lines = (read_figures(folder / name) for name in (workdir.METRICS, workdir.EVALUATIONS))
        return cls(str(folder), RunFolder(str(folder), folder), status, *lines)


def add_compare(commands: Commands) -> None:
    parser = add_command(
        commands, "compare", help="show which fields of runs differ, and the figures of each run"
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="work directories, two or more")
    parser.add_argument(
        "--csv", type=Path, metavar="FILE", help="also write the figures of every step to a file"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="also draw the curves of all runs in one picture, such as all.png",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if len(options.runs) < 2:
        raise Misuse("compare needs two work directories or more")
    runs = [Run.read(folder) for folder in options.runs]
    print_line(table(runs), sys.stdout)
    if options.csv is not None:
        _write_curves(options.csv, runs)
        print_line(f"figures of every step are in {options.csv}", sys.stdout)
    if options.picture is not None:
        request = PictureRequest(runs={each.name: each.name for each in runs}, out=str(options.picture))
        return run_module("rlhf_trainer.commands.picture", request).returncode
    return 0


def table(runs: Sequence[Run]) -> str:
    """The differences between the runs, and the outcome of each: a column for each, or a line if there are many."""
    rows = [("", *(each.name for each in runs)), *_differences(runs), *_figures(runs)]
    return "\n".join(columns(list(zip(*rows, strict=True)) if len(runs) > MOST_COLUMNS else rows))


def _differences(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """A row for each field, and each other thing that the page compares, that is not the same in all runs."""
    first, *others = (run.folder for run in runs)
    changes = [
        {each["path"]: each for each in list_differences(first, other)["differences"]} for other in others
    ]
    for path in dict.fromkeys(path for paths in changes for path in paths):
        old = next(paths[path]["a"] for paths in changes if path in paths)
        new = [show(paths[path]["b"] if path in paths else old) for paths in changes]
        yield path, show(old), *new


def _figures(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Rows of what came of the runs, without those that none has."""
    rows: list[tuple[str, Callable[[Run], str]]] = [
        ("phase", _phase),
        ("steps", lambda run: str(len(run.steps))),
        *(
            (f"{title}, last", _last_of(figure))
            for title, figure in (("reward", "reward_mean"), ("KL", "kl_mean"), ("loss", "loss"))
        ),
        ("reward, best of 10 steps", _best_reward),
        *_of_evaluations(runs),
        ("seconds of steps", lambda run: span(sum(_values(run.steps, "seconds")))),
        ("tokens/s, median", _speed),
    ]
    for title, describe in rows:
        cells = [describe(run) for run in runs]
        if set(cells) != {ABSENT}:
            yield title, *cells


def _phase(run: Run) -> str:
    if run.status is None:
        return ABSENT
    cause = reason(run.status, "Failed")
    return f"{run.status.phase} ({cause})" if cause else run.status.phase


def _last_of(figure: str) -> Callable[[Run], str]:
    def describe(run: Run) -> str:
        values = _values(run.steps, figure)
        return f"{values[-1]:.4g}" if values else ABSENT

    return describe


def _best_reward(run: Run) -> str:
    """Highest mean of ten steps in a row, which one lucky step does not make, and the last of these steps."""
    rewards = [
        (line["step"], line["reward_mean"]) for line in run.steps if _is_figure(line.get("reward_mean"))
    ]
    if not rewards:
        return ABSENT
    width = min(10, len(rewards))
    means = [
        (statistics.fmean(reward for _, reward in rewards[i : i + width]), rewards[i + width - 1][0])
        for i in range(len(rewards) - width + 1)
    ]
    best, step = max(means)
    return f"{best:.4g} (to step {step})"


def _of_evaluations(runs: Sequence[Run]) -> Iterator[tuple[str, Callable[[Run], str]]]:
    """A row for each set, or for each metric of it that has a name, of its first, its last and its best mean or
    loss."""
    lines = [line for run in runs for line in run.evaluations]
    judged = [(str(line.get("set")), *each) for line in lines for each in list_means(line).items()]
    for name, metric, key in dict.fromkeys(judged):

        def describe(run: Run, name: str = name, key: str = key) -> str:
            values = _values([line for line in run.evaluations if line.get("set") == name], key)
            best = min if key == "loss" else max
            return f"{values[0]:.4g} -> {values[-1]:.4g}, best {best(values):.4g}" if values else ABSENT

        yield f"evaluation {name}" if key in ("mean", "loss") else f"evaluation {name} {metric}", describe


def _speed(run: Run) -> str:
    speeds = [
        line["tokens"] / line["seconds"]
        for line in run.steps
        if _is_figure(line.get("tokens")) and _is_figure(line.get("seconds")) and line["seconds"] > 0
    ]
    return f"{statistics.median(speeds):,.0f}" if speeds else ABSENT


def _values(lines: Sequence[Line], figure: str) -> list[float]:
    return [line[figure] for line in lines if _is_figure(line.get(figure))]


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _write_curves(file: Path, runs: Sequence[Run]) -> None:
    try:
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(("run", "step", *CURVES))
            for each in runs:
                for line in each.steps:
                    writer.writerow((each.name, line.get("step"), *(line.get(figure) for figure in CURVES)))
    except OSError as error:
        raise InvalidJob([Problem(str(file), f"cannot be written: {error.strerror}")]) from None
