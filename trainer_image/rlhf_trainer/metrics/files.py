"""Metrics files of a run: one JSON line per step and per evaluation, and one of a step's timeline."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_api.contract import timeline
from rlhf_api.contract.timeline import StepTimeline
from rlhf_api.host import strict_json

from .step_lines import StepLines
from .tracking import Tracking

STEPS, EVALUATIONS = "metrics.jsonl", "evaluation.jsonl"
"""Files in the work directory."""
_MOST_TIMELINE_BYTES = 16 << 20


class MetricsFiles:
    """`metrics.jsonl`, `evaluation.jsonl` and `timeline.jsonl` of a work directory, and the job's trackers."""

    def __init__(self, workdir: Path, step: int, tracking: Tracking, *, rollbacks: int = 0) -> None:
        """Drops lines of steps after `step`, left by a run that went beyond its last snapshot; from step 0 on all, as
        that is evaluated again. `rollbacks` as in `Tracking.begin`."""
        self._tracking = tracking
        tracking.begin(step, rollbacks)
        self._steps, self._evaluations = workdir / STEPS, workdir / EVALUATIONS
        for file in (self._steps, self._evaluations):
            _keep(file, step or -1)
        self._timeline = StepLines(workdir / timeline.FILE, _MOST_TIMELINE_BYTES, step)
        self.recent: deque[Mapping[str, Any]] = deque(maxlen=10)

    def step(self, values: Mapping[str, Any]) -> None:
        self.recent.append(values)
        _append(self._steps, values)
        self._tracking.log(values["step"], values)

    def times(self, record: StepTimeline) -> None:
        self._timeline.add(record.step, [record])

    def evaluation(self, values: Mapping[str, Any]) -> None:
        _append(self._evaluations, values)
        self._tracking.log(values["step"], values, f"evaluation/{values['set']}/")


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
