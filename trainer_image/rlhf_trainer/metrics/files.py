"""Metrics files of a run: one JSON line per step, and a plot of the reward."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.host import strict_json

from .tracking import Tracking

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STEPS, EVALUATIONS, PICTURE = "metrics.jsonl", "evaluation.jsonl", "reward.png"
"""Files in the work directory."""


class MetricsFiles:
    """`metrics.jsonl` and `evaluation.jsonl` of a work directory, and the job's trackers."""

    def __init__(self, workdir: Path, step: int, tracking: Tracking, *, rollbacks: int = 0) -> None:
        """Drops lines of steps after `step`, left by a run that went beyond its last snapshot; from step 0 on all, as
        that is evaluated again. `rollbacks` as in `Tracking.begin`."""
        self._tracking = tracking
        tracking.begin(step, rollbacks)
        self._steps, self._evaluations = workdir / STEPS, workdir / EVALUATIONS
        for file in (self._steps, self._evaluations):
            _keep(file, step or -1)
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=10)

    def step(self, values: Mapping[str, Any]) -> None:
        self.recent.append(values)
        _append(self._steps, values)
        self._tracking.log(values["step"], values)

    def evaluation(self, values: Mapping[str, Any]) -> None:
        _append(self._evaluations, values)
        self._tracking.log(values["step"], values, f"evaluation/{values['set']}/")


def draw_picture(workdir: Path, title: str) -> None:
    """Plots the reward (or loss) and KL of every step so far, if there is one, from the files of a work directory."""
    rows, judged = read_lines(workdir / STEPS), read_lines(workdir / EVALUATIONS)
    if rows:
        reward_figure(rows, judged, title).savefig(workdir / PICTURE, dpi=120)


def reward_figure(
    rows: Iterable[Mapping[str, Any]], judged: Iterable[Mapping[str, Any]], title: str
) -> "Figure":
    """Reward, evaluation and KL over steps; for algorithms without reward, the loss and the held-out losses."""
    from matplotlib.figure import Figure  # takes a second to import; not before the first step

    rows, judged = list(rows), list(judged)
    steps = [row["step"] for row in rows]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    left.set(title=title, xlabel="step")
    left.grid(alpha=0.3)
    if "reward_mean" not in rows[0]:
        # Missing in a step that trains nothing yet.
        left.plot(steps, [row.get("loss", nan) for row in rows], color="tab:blue", label="training")
        left.set_ylabel("loss")
        _draw_sets(left, judged, "loss")
        if judged:
            figure.legend(loc="outside lower center", ncols=3)
        return figure
    left.plot(steps, [row["reward_mean"] for row in rows], color="tab:blue", label="reward")
    left.set_ylabel("reward")
    with_kl = [row for row in rows if "kl_mean" in row]  # missing without a reference
    if not with_kl and not judged:  # no second axis with nothing on it
        return figure
    right = left.twinx()
    if with_kl:
        right.plot(
            [row["step"] for row in with_kl],
            [row["kl_mean"] for row in with_kl],
            color="tab:orange",
            label="KL (nats a token)",
        )
    _draw_sets(right, judged, "mean")
    right.set_ylabel(", ".join(name for name, points in (("KL", with_kl), ("evaluation", judged)) if points))
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _draw_sets(axes: "Axes", judged: Sequence[Mapping[str, Any]], figure: str) -> None:
    """Draws one line for each evaluation set, in the colours after those of reward and KL."""
    sets = dict.fromkeys(row.get("set") for row in judged)
    for i, name in enumerate(sets):
        of_set = [row for row in judged if row.get("set") == name]
        axes.plot(
            [row["step"] for row in of_set],
            [row[figure] for row in of_set],
            "o--",
            color=f"C{2 + i % 8}",
            label=f"evaluation: {name}" if len(sets) > 1 else "evaluation",
        )


def _append(file: Path, values: Mapping[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(strict_json.dumps(values) + "\n")


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, with NaN for figures that are null there; a last line cut short by a crash is left out."""
    rows = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            rows.append(strict_json.figures(line))
        except ValueError:
            continue
    return rows


def _keep(file: Path, step: int) -> None:
    if file.exists():
        lines = [strict_json.dumps(row) + "\n" for row in read_lines(file) if row["step"] <= step]
        new = file.with_name(f".{file.name}.new")
        new.write_text("".join(lines), encoding="utf-8")
        new.replace(file)  # the old lines stay until the new file is complete
