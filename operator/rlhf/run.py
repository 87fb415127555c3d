"""A run of this machine: its steps as they come, its end, and what it leaves in its work directory."""

import atexit
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from rlhf_api.contract.samples import Sample
from rlhf_api.contract.status import ENDED, JobStatus
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.printing import write_line
from rlhf_operator.archive.sample_order import Order
from rlhf_operator.archive.samples import read_samples
from rlhf_operator.console.exits import INTERRUPTED, USAGE, Failure
from rlhf_operator.local.display.metrics import Metrics, read_figures
from rlhf_operator.local.records import workdir
from rlhf_operator.local.run_process import POLL_SECONDS, RunProcess, handle_signals
from rlhf_operator.supervision.exit_reasons import exit_words

if TYPE_CHECKING:
    import pandas

Figures = Mapping[str, Any]
"""A line of `metrics.jsonl` or `evaluation.jsonl`."""
_ERROR = "error: "
_LONGEST_STOP_SECONDS = 700.0
"""More than a run needs to stop (`rlhf_operator.local.host`)."""


class Run:
    """A run by its work directory. `Job.run` starts one; `Run.open` is one that was started elsewhere."""

    def __init__(self, folder: Path, process: RunProcess | None = None) -> None:
        self.workdir = folder
        self._process = process
        self._lines: list[str] = []
        """All that `rlhf run` has printed, as far as it was read."""
        self._shown = 0
        """Number of these that `wait` has printed."""

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """A run that `rlhf run` or an earlier Python process has started. Raises InvalidJob if there is none."""
        if not (Path(folder) / workdir.CONFIG).is_file():
            raise InvalidJob([Problem(str(folder), f"holds no run: {workdir.CONFIG} is missing")])
        return cls(Path(folder))

    @classmethod
    def start(cls, folder: Path, arguments: Sequence[str]) -> Self:
        """Starts `rlhf run` with these arguments. Raises InvalidJob if it refuses."""
        process = RunProcess(arguments)
        run = cls(folder, process)
        atexit.register(run._end_with_python)
        run._wait(lambda: any(not line.startswith(_ERROR) for line in run._read_lines()))
        if process.code == USAGE:
            run._raise_failure()
        return run

    def __repr__(self) -> str:
        status = self.status
        state = f"{status.phase} at step {status.step} of {status.total_steps}" if status else "no status yet"
        return f"<Run {str(self.workdir)!r}: {state}>"

    @property
    def status(self) -> JobStatus | None:
        """Its `status.json`; None before there is one."""
        return workdir.read(self.workdir / workdir.STATUS, JobStatus)

    @property
    def running(self) -> bool:
        if self._process is not None:
            return self._process.code is None
        return workdir.is_held(self.workdir)

    def wait(self, *, quiet: bool = False) -> Self:
        """Prints the lines of `rlhf run` until its end, and returns this run, Succeeded or Suspended. Ctrl-C stops it
        after a checkpoint, a second one at once, and is raised at the end. Raises Failure if it fails."""
        try:
            self._wait(lambda: not quiet and self._print_lines())
        finally:
            if not quiet:
                self._print_lines()
        self._raise_failure()
        return self

    def __iter__(self) -> Iterator[Figures]:
        """The figures of each step, from the first one on, as they come. Ctrl-C while this waits, and a failed run, end
        it as they end `wait`."""
        metrics = Metrics(self.workdir / workdir.METRICS, whole=True)
        while True:
            was_running = self.running
            steps = metrics.new()
            yield from steps
            if not steps and not was_running:
                break
            if not steps:
                self._wait(lambda: True)
        self._raise_failure()

    def stop(self) -> None:
        """Requests a checkpoint and exit, and returns at once; the second call ends the run without. Raises Failure for
        a run that was started elsewhere."""
        if self._process is None:
            raise Failure(f"{self.workdir}: was not started here; stop its `rlhf run` by Ctrl-C or SIGTERM")
        self._process.stop()

    def steps(self) -> list[Figures]:
        """The figures of all steps so far."""
        return read_figures(self.workdir / workdir.METRICS)

    def metrics(self) -> "pandas.DataFrame":
        """The figures of all steps so far, a row each."""
        try:
            import pandas
        except ModuleNotFoundError:
            message = (
                "metrics() makes a pandas.DataFrame: pip install pandas, or use steps(), a list of dicts"
            )
            raise ModuleNotFoundError(message, name="pandas") from None
        return pandas.DataFrame(self.steps())

    def evaluations(self) -> list[Figures]:
        """The figures of all evaluations so far, a line for each set."""
        return read_figures(self.workdir / workdir.EVALUATIONS)

    def samples(
        self, *, step: int | str | None = None, prompt: str | None = None, order: Order | None = None
    ) -> list[Sample]:
        """Responses that were sampled during training, as `rlhf samples` finds them: of steps such as 10 or "10..20",
        to prompts that contain a text; the newest first, with `prompt` the oldest. Raises InvalidJob without any."""
        if order not in (None, *get_args(Order)):
            raise ValueError(f"order must be one of {', '.join(get_args(Order))}; got {order!r}")
        return read_samples(str(self.workdir), None if step is None else str(step), prompt, order)

    def policy(self) -> Path:
        """The folder of the trained model, in Hugging Face format. Raises Failure before the end of the run."""
        folder = self.workdir / workdir.POLICY
        if not folder.is_dir():
            command = f"rlhf checkpoint export {self.workdir} latest OUT"
            raise Failure(
                f"{folder}: is not there before the last step; `{command}` writes a checkpoint's model"
            )
        return folder

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        """Waits for the end of the run, or until `is_enough` a moment later. A Ctrl-C stops the run and is raised when
        it has ended."""
        with handle_signals(self.stop, signal.SIGINT) as received:
            while self.running:
                time.sleep(POLL_SECONDS)
                if is_enough() and not received:
                    break
        if received:
            raise KeyboardInterrupt

    def _read_lines(self) -> list[str]:
        """All lines of `rlhf run` so far."""
        if self._process is not None:
            self._lines += self._process.new_lines()
        return self._lines

    def _print_lines(self) -> bool:
        lines = self._read_lines()
        for line in lines[self._shown :]:
            write_line(line, sys.stdout)
        self._shown = len(lines)
        return False

    def _raise_failure(self) -> None:
        """Raises what `rlhf run` printed as its error, of a run that has ended; nothing for one that ended well."""
        if self._process is None:
            self._raise_by_status()
            return
        atexit.unregister(self._end_with_python)
        code, lines = self._process.code, self._read_lines()
        if code in (0, INTERRUPTED):
            return
        errors = [line for line in lines if line.startswith(_ERROR)]
        parts = [line.removeprefix(_ERROR).partition(": ") for line in errors]
        if code == USAGE and parts and all(message for _, _, message in parts):
            raise InvalidJob([Problem(where, message) for where, _, message in parts])
        last = "\n".join(lines[lines.index(errors[0]) :]) if errors else ""
        raise Failure(last.removeprefix(_ERROR) or f"`rlhf run` in {self.workdir} {exit_words(code or 0)}")

    def _raise_by_status(self) -> None:
        status = self.status
        if status is None or status.phase not in (*ENDED, "Suspended"):
            raise Failure(f"{self.workdir}: its `rlhf run` has died; go on with resume=True")
        if status.phase == "Failed":
            raise Failure(status.message)

    def _end_with_python(self) -> None:
        self.stop()
        deadline = time.monotonic() + _LONGEST_STOP_SECONDS
        while self.running and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
