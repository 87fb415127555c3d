"""Prints the end of `rlhf run`: the outcome, its figures, and the commands that go on from it."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rlhf_api.contract.prediction import FILE as PREDICTION
from rlhf_api.contract.prediction import Prediction
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob

from ..archive.export import export_command
from ..console.exits import print_line
from ..local.display.metrics import evaluation_changes
from ..local.display.predicted import after_line
from ..local.records import workdir
from ..local.records.measured import Measured
from ..status.condition import reason
from ..supervision.exit_reasons import missing_words
from ..supervision.restart_policy import INVALID


def print_conclusion(status: JobStatus, message: str, folder: Path, store: str | None, command: str) -> None:
    """Prints the outcome: where the results are, or what failed, the command that continues, and the one that gets the
    model so far."""
    step = status.last_checkpoint.step if status.last_checkpoint else None
    resume = f"go on with `{command}`"
    for line in filter(None, (status.overlong, *status.trackers_failed)):
        print_line(f"warning: {line}", sys.stderr)
    model = ""
    if step is not None:
        export = export_command(store or str(folder), step, str(folder / f"{workdir.POLICY}-{step}"))
        model = f", or get its model with `{export}`"
    if status.phase == "Failed":
        print_line(f"error: {message}", sys.stderr)
        if step is not None:
            again = reason(status, "Failed") == INVALID
            mended = " once this is mended: as it is, a resumed run ends here again" if again else ""
            print_line(f"the newest checkpoint is of step {step}; {resume}{mended}{model}", sys.stderr)
    elif status.phase == "Suspended":
        print_line(f"{message}; {resume}{model}", sys.stderr)
    else:
        print_line(f"done: {status.step} of {status.total_steps} steps", sys.stdout)
        for line in _list_seconds(folder):
            print_line(f"  {line}", sys.stdout)
        for line in evaluation_changes(folder / workdir.EVALUATIONS):
            print_line(f"  {line}", sys.stdout)
        for name in (workdir.POLICY, workdir.METRICS, workdir.CURVE):
            if (folder / name).exists():
                print_line(f"  {folder / name}", sys.stdout)
    if missing := missing_words(status.ledger):
        print_line(f"warning: {missing}; see {folder / workdir.LOGS / 'trainer-0.log'}", sys.stderr)


def _list_seconds(folder: Path) -> Iterator[str]:
    """A step's seconds beside the predicted ones, of a run that has both."""
    prediction = workdir.read(folder / PREDICTION, Prediction)
    if prediction is not None and prediction.step is not None:
        with suppress(InvalidJob):  # without a step
            yield from filter(None, [after_line(prediction, Measured.read(folder).seconds)])
