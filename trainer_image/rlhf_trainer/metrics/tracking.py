"""Sends a run's metrics to its trackers, on a thread each: none slows a step down or ends the job."""

import importlib.util
import json
import logging
import math
import os
import queue
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlhf_api.contract.samples import Sample
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import TRACKER_PACKAGES
from rlhf_api.host.redaction import masked, redacted, secrets_of
from rlhf_api.sections.trackers import Tracker as Wanted
from rlhf_api.spec import Spec

from ..process.imports import import_function
from .builtin_trackers import BUILT_IN, Figures, Run, SampleTracker, Tracker
from .wandb_key import has_key

log = logging.getLogger(__name__)

WAITING = 1000
"""Queue size of a tracker in lines; lines beyond it are dropped."""
CLOSE_SECONDS = 30.0
"""Deadline for a tracker to empty its queue at the end of the run, seconds."""
ID = "run-id"
"""File in the work directory: the run's id for trackers, then the identity that its host gave the run, if any."""
PROJECT = "rlhf"
LONGEST = 500
"""Maximum length of what the host hears of an error, in characters."""
AGAIN_SECONDS = 60.0
"""Interval between the tries to create a tracker whose server is down, seconds."""
SAMPLES_EVERY = 10
"""Interval between the steps whose responses trackers get: some make a file of each table."""
Logged = Figures | Sequence[Sample]


class Tracking:
    """The trackers of a job: created by `begin`, closed on exit of the context."""

    def __init__(
        self,
        job: str,
        spec: Spec,
        folder: Path,
        identity: str = "",
        report: Callable[[Sequence[str]], None] = lambda _failing: None,
    ) -> None:
        """`identity`: of this run, where its host gives one; `report` is told of the trackers that fail, a line each,
        on any thread. Raises InvalidJob, naming all of them, if trackers are not installed, cannot be imported or have
        no key."""
        self._job, self._spec, self._folder, self._identity = job, spec, folder, identity
        self._makers = _makers(spec)
        self._feeds: list[_Feed] = []
        self._report, self._failing, self._lock = report, dict[int, str](), threading.Lock()

    def begin(self, step: int, rollbacks: int) -> None:
        """Creates the trackers; metrics of steps after `step` follow. After each of the `rollbacks` of health rules
        they are of a new run: W&B, MLflow and trackio take no value back, and the undone steps have other ones."""
        if not self._makers:
            return
        after = f"-rollback-{rollbacks}" if rollbacks else ""
        manifest = masked(json.loads(self._spec.model_dump_json(by_alias=True)), secrets_of(os.environ))
        names = (_run_id(self._folder, self._identity, step) + after, self._job + after)
        for i, (tracker_spec, make) in enumerate(zip(self._spec.trackers, self._makers, strict=True)):
            project = tracker_spec.project or PROJECT
            run = Run(*names, project, self._folder, step, manifest)
            self._feeds.append(_Feed(tracker_spec, make, run, partial(self._tell, i)))

    def log(self, step: int, values: Mapping[str, Any], prefix: str = "") -> None:
        """Logs the numbers among the values, except the step's own number."""
        figures = {prefix + name: float(v) for name, v in values.items() if _is_figure(v) and name != "step"}
        for feed in self._feeds:
            feed.put(figures, step)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Logs the responses of every `SAMPLES_EVERY` steps."""
        if samples and step % SAMPLES_EVERY == 0:
            for feed in self._feeds:
                feed.put(samples, step)

    def _tell(self, index: int, problem: str) -> None:
        """Reports the problem of a tracker; '' if it has none any more."""
        with self._lock:
            self._failing[index] = problem
            self._report([line for _, line in sorted(self._failing.items()) if line])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for feed in self._feeds:
            feed.end(ok=kind is None)
        for feed in self._feeds:
            feed.join()


class _Feed:
    """One tracker and its thread."""

    def __init__(
        self, tracker_spec: Wanted, make: Callable[..., Tracker], run: Run, tell: Callable[[str], None]
    ) -> None:
        self._kind, self._tell, self._problem = tracker_spec.kind, tell, ""
        self._make: Callable[[], Tracker] = partial(make, run, **tracker_spec.settings)
        self._lines: queue.Queue[tuple[Logged, int]] = queue.Queue(WAITING)
        self._over, self._ok = threading.Event(), True
        self._dropped, self._refused = 0, 0  # counted on a thread each
        # A daemon thread: a client that hangs does not block the trainer's exit.
        self._thread = threading.Thread(target=self._run, name=f"tracker {self._kind}", daemon=True)
        self._thread.start()

    def put(self, logged: Logged, step: int) -> None:
        try:
            self._lines.put_nowait((logged, step))
        except queue.Full:
            if not self._dropped:
                log.warning("tracker %s is %d lines behind; further lines are dropped", self._kind, WAITING)
            self._dropped += 1

    def end(self, *, ok: bool) -> None:
        self._ok = ok
        self._over.set()

    def join(self) -> None:
        self._thread.join(CLOSE_SECONDS)
        behind, lost, losses = self._lines.qsize(), self._dropped + self._refused, list[str]()
        if self._thread.is_alive():
            losses.append(f"did not close within {CLOSE_SECONDS:g} s, {behind} lines behind")
        else:
            lost += behind  # nothing, if it could be created
        if lost:
            losses.append(f"{lost} lines were not sent")
        for line in losses:
            log.warning("tracker %s: %s", self._kind, line)
        if losses:
            self._tell("; ".join((self._problem or f"tracker {self._kind} failed", *losses)))

    def _run(self) -> None:
        tracker = self._created()
        if tracker is None:
            return
        while True:
            try:
                logged, step = self._lines.get(timeout=0.2)
            except queue.Empty:
                if self._over.is_set():
                    break
                continue
            try:
                if isinstance(logged, Mapping):
                    tracker.log(logged, step)
                elif isinstance(tracker, SampleTracker):
                    tracker.log_samples(logged, step)
            except Exception as error:
                self._refused += 1
                self._complain(f"did not take the figures of step {step}", error)
        try:
            tracker.close(ok=self._ok)
        except Exception as error:
            self._complain("cannot be closed", error)

    def _created(self) -> Tracker | None:
        """The tracker, as soon as it can be created: while its server is down its lines wait. None if it cannot by the
        end of the run."""
        while True:
            last = self._over.is_set()
            try:
                tracker = self._make()
                if self._problem:
                    self._problem = ""
                    self._tell("")
                return tracker
            except Exception as error:
                self._complain(f"cannot be begun, and is tried again every {AGAIN_SECONDS:g} s", error)
            if last:
                return None
            self._over.wait(AGAIN_SECONDS)

    def _complain(self, what: str, error: Exception) -> None:
        """Logs and reports an error once: an unreachable server would fill the log."""
        if self._problem:
            return
        log.warning("tracker %s %s: %s: %s", self._kind, what, type(error).__name__, error)
        words = " ".join(f"tracker {self._kind} {what}: {type(error).__name__}: {error}".split())
        self._problem = redacted(words, secrets_of(os.environ))[:LONGEST]
        self._tell(self._problem)


def _makers(spec: Spec) -> list[Callable[..., Tracker]]:
    makers, problems = list[Callable[..., Tracker]](), list[Problem]()
    for i, tracker_spec in enumerate(spec.trackers):
        where, package = f"spec.trackers[{i}].kind", TRACKER_PACKAGES.get(tracker_spec.kind)
        if package is None:
            try:
                makers.append(import_function(tracker_spec.kind, where))
            except InvalidJob as error:
                problems += error.problems
        elif importlib.util.find_spec(package) is None:
            message = (
                f"{tracker_spec.kind} is not installed where the trainer runs; `pip install {package}` there"
            )
            problems.append(Problem(where, message))
        elif tracker_spec.kind == "wandb" and not has_key(tracker_spec.settings):
            message = (
                "Weights & Biases has no key here: set WANDB_API_KEY, on a cluster by spec.pods.secrets, or run "
                "`wandb login`; without a key WANDB_MODE=offline writes files for `wandb sync`"
            )
            problems.append(Problem(where, message))
        else:
            makers.append(BUILT_IN[tracker_spec.kind])
    if problems:
        raise InvalidJob(problems)
    return makers


def _run_id(folder: Path, identity: str, step: int) -> str:
    """The id in the work directory; a new one for a run that starts where another one, such as a deleted job of the
    same name, has left its own."""
    file = folder / ID
    before = file.read_text() if file.exists() else ""
    run_id, _, owner = before.partition(" ")
    if not run_id or (step == 0 and owner != identity):
        run_id = secrets.token_hex(8)
    if (now := f"{run_id} {identity}".rstrip()) != before:
        file.write_text(now)
    return run_id


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
