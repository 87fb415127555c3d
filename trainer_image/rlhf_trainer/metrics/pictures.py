"""Pictures of a run's figures over its steps, and of several runs in one."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from .files import EVALUATIONS, STEPS, read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = "reward.png"
"""File in the work directory."""
KL = "KL (nats a token)"
DPI = 120
PARTS = 30
"""Where several runs would hide each other, a bold curve shows means, each of one of so many parts of its steps."""
_COLOURS, _STYLES = 10, ("-", "--", ":", "-.")
Row = Mapping[str, Any]


def draw_picture(workdir: Path, title: str) -> None:
    """Plots the reward (or loss) and KL of every step so far, if there is one, from the files of a work directory."""
    rows, judged = read_lines(workdir / STEPS), read_lines(workdir / EVALUATIONS)
    if rows:
        reward_figure(rows, judged, title).savefig(workdir / PICTURE, dpi=DPI)


def reward_figure(rows: Iterable[Row], judged: Iterable[Row], title: str) -> "Figure":
    """Reward, evaluation and KL over steps; for algorithms without reward, the loss and the held-out losses."""
    from matplotlib.figure import Figure  # takes a second to import; not before the first step

    rows, judged = list(rows), list(judged)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    left.set(title=title, xlabel="step")
    left.grid(alpha=0.3)
    if "reward_mean" not in rows[0]:
        _draw(left, rows, "loss", color="tab:blue", label="training")
        left.set_ylabel("loss")
        _draw_sets(left, judged, "loss")
        if judged:
            figure.legend(loc="outside lower center", ncols=3)
        return figure
    _draw(left, rows, "reward_mean", color="tab:blue", label="reward")
    left.set_ylabel("reward")
    with_kl = any("kl_mean" in row for row in rows)  # missing without a reference
    if not with_kl and not judged:  # no second axis with nothing on it
        return figure
    right = left.twinx()
    if with_kl:
        _draw(right, rows, "kl_mean", color="tab:orange", label=KL)
    _draw_sets(right, judged, "mean")
    right.set_ylabel(
        ", ".join(name for name, is_there in (("KL", with_kl), ("evaluation", judged)) if is_there)
    )
    figure.legend(loc="outside lower center", ncols=3)
    return figure


class _Panel(NamedTuple):
    title: str
    figure: str
    """The key of its figure in a line."""
    rows: Mapping[str, Sequence[Row]]
    """Of each run that has the figure, its lines."""


def comparison_figure(workdirs: Mapping[str, Path]) -> "Figure":
    """Runs by name, each in a colour: reward or loss, each evaluation set, and KL, one below the other. Raises
    ValueError if none has a step."""
    from matplotlib.figure import Figure

    panels = _panels(
        {name: (read_lines(d / STEPS), read_lines(d / EVALUATIONS)) for name, d in workdirs.items()}
    )
    if not panels:
        raise ValueError("no run has the figures of a step")
    figure = Figure(figsize=(9, 1 + 2.6 * len(panels) + 0.1 * len(workdirs)), layout="constrained")
    styles = {
        name: {"color": f"C{i % _COLOURS}", "linestyle": _STYLES[i // _COLOURS % len(_STYLES)]}
        for i, name in enumerate(workdirs)
    }
    for axes, panel in zip(
        figure.subplots(len(panels), sharex=True, squeeze=False).flat, panels, strict=True
    ):
        axes.set_ylabel(panel.title)
        axes.grid(alpha=0.3)
        for name, rows in panel.rows.items():
            if panel.title.startswith("evaluation"):
                _draw(axes, rows, panel.figure, marker="o", markersize=3, **styles[name])
            else:
                _draw(axes, rows, panel.figure, alpha=0.25, linewidth=0.8, color=styles[name]["color"])
                _draw(axes, _smooth(rows, panel.figure), panel.figure, **styles[name])
        axes.set_xlabel("step" if panel is panels[-1] else "")
    handles = [axes.plot([], [], label=name, **style)[0] for name, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _panels(runs: Mapping[str, tuple[Sequence[Row], Sequence[Row]]]) -> list[_Panel]:
    """Panels that the runs have figures of. Loss is shown of runs without a reward alone: under it, it says little."""
    steps = {name: rows for name, (rows, _) in runs.items()}
    learn = {name for name, rows in steps.items() if _has("reward_mean", rows)}
    panels = [
        _Panel("reward", "reward_mean", steps),
        _Panel("loss", "loss", {name: rows for name, rows in steps.items() if name not in learn}),
    ]
    for held_out in dict.fromkeys(str(row.get("set")) for _, judged in runs.values() for row in judged):
        of_set = {
            name: [row for row in judged if str(row.get("set")) == held_out]
            for name, (_, judged) in runs.items()
        }
        panels += [_Panel(f"evaluation: {held_out}", figure, of_set) for figure in ("mean", "loss")]
    panels.append(_Panel(KL, "kl_mean", steps))
    shown = [
        panel._replace(rows={name: rows for name, rows in panel.rows.items() if _has(panel.figure, rows)})
        for panel in panels
    ]
    return [panel for panel in shown if panel.rows]


def _has(figure: str, rows: Sequence[Row]) -> bool:
    return any(_is_finite(row.get(figure)) for row in rows)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _smooth(rows: Sequence[Row], figure: str) -> list[Row]:
    """The mean of the steps up to each, as many as one part in PARTS has."""
    finite = [row for row in rows if _is_finite(row.get(figure))]
    width = max(1, len(finite) // PARTS)
    values = [row[figure] for row in finite]
    return [
        {"step": row["step"], figure: fmean(values[max(0, i + 1 - width) : i + 1])}
        for i, row in enumerate(finite)
    ]


def _draw(axes: "Axes", rows: Sequence[Row], figure: str, **style: Any) -> None:
    """Draws a line, with a gap where a step has no such figure, as one that trains nothing yet."""
    axes.plot([row["step"] for row in rows], [row.get(figure, nan) for row in rows], **style)


def _draw_sets(axes: "Axes", judged: Sequence[Row], figure: str) -> None:
    """Draws one line for each evaluation set, in the colours after those of reward and KL."""
    sets = dict.fromkeys(row.get("set") for row in judged)
    for i, name in enumerate(sets):
        label = f"evaluation: {name}" if len(sets) > 1 else "evaluation"
        of_set = [row for row in judged if row.get("set") == name]
        _draw(axes, of_set, figure, marker="o", linestyle="--", color=f"C{2 + i % 8}", label=label)
