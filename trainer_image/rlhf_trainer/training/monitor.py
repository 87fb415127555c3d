"""Health monitor of a run: judges each step's metrics and acts on all ranks."""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rlhf_api.contract.report import HealthStatus
from rlhf_api.contract.run import EXIT_ROLLED_BACK, EXIT_UNHEALTHY
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.health import Action

from ..checkpoint.saver import Saver
from ..dispatch.roster import Stopped
from ..process import progress
from ..process.role import RoleEnd
from ..ranks.context import TrainerContext
from .breaches import Breach
from .health import Watch, good, judge, restored, saved

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""Poll interval of a paused job for a stop request, seconds."""
ACTIVITY = 256
"""Maximum length of the activity text."""


class Monitor:
    """Judges every step on rank 0, the only rank with all metrics."""

    def __init__(self, ctx: TrainerContext, saver: Saver, *, begins: int) -> None:
        """A collective. `begins`: number of initial steps in which some model is not trained."""
        self._ctx, self._saver, self._begins = ctx, saver, begins
        self.rollbacks = saver.rollbacks()
        """Rollbacks and pauses of the run so far."""
        self._watches: Mapping[str, Watch] = {}
        self._reported: HealthStatus | None = None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a snapshot's window; empty for one of an earlier release."""
        self._watches = restored(state)

    def state(self) -> dict[str, Any]:
        """The window, as JSON; rank 0's is stored."""
        return saved(self._watches)

    @property
    def good(self) -> bool:
        """True on rank 0 if the last step may be the target of a rollback."""
        return good(self._ctx.spec.health, self._watches)

    def check(self, metrics: Mapping[str, float], step: int, other_weights: str = "") -> None:
        """Judges the metrics of `step`, before its weights are published; `other_weights` as in `judge`. A collective.

        Raises:
            InvalidJob: this job has no metric that a rule names.
            RoleEnd: the job fails or rolls back; on every rank.
            Stopped: a stop was requested while paused; the run resumes from the last good snapshot.
        """
        breach = self._judged(metrics, step, other_weights)
        if breach is None:
            return
        message, action, most = f"{breach.where}: {breach.message}", breach.action, self._most
        if action == "rollback" and self.rollbacks >= most:
            action = "fail"
            message += f"; it went back {self.rollbacks} times already (spec.health.maxRollbacks {most})"
        if action in ("rollback", "pause"):
            to = self._saver.roll_back()
            self.rollbacks += 1
            message += f"; back to {f'the checkpoint of step {to}' if to else 'the start'}"
        if action == "rollback":
            message += f" with another data order, {self.rollbacks} of {most} times"
        log.warning("%s: %s", action, message)
        self._report(breach, action, step, message)
        if action == "pause":
            self._pause(message)
        if action != "warn":
            raise RoleEnd(message, EXIT_UNHEALTHY if action == "fail" else EXIT_ROLLED_BACK)

    @property
    def _most(self) -> int:
        return self._ctx.spec.health.max_rollbacks

    def _judged(self, metrics: Mapping[str, float], step: int, other_weights: str) -> Breach | None:
        """Broadcast of rank 0's verdict."""

        def decide() -> tuple[dict[str, Any], dict[str, Any]]:
            spec, begun = self._ctx.spec, step > self._begins
            verdict = judge(
                spec.health,
                self._watches,
                metrics,
                step,
                begun=begun,
                compared=not spec.sampling.cut,
                outliers=spec.outlier_limit(),
                other_weights=other_weights,
                learns_from_scores=spec.algorithm != "distillation",
            )
            self._watches = verdict.watches
            breach = None if verdict.breach is None else asdict(verdict.breach)
            return {}, {"breach": breach, "unknown": [asdict(problem) for problem in verdict.unknown]}

        _, header = self._ctx.ranks.share(decide)
        if header["unknown"]:
            raise InvalidJob([Problem(**fields) for fields in header["unknown"]])
        return None if header["breach"] is None else Breach(**header["breach"])

    def _report(self, breach: Breach, action: Action, step: int, message: str) -> None:
        before = self._reported
        goes_on = (
            before and before.step == step - 1 and (before.reason, before.action) == (breach.reason, action)
        )
        self._reported = HealthStatus(
            step=step,
            since=before.since if before and goes_on else step,
            reason=breach.reason,
            action=action,
            message=message,
            rollbacks=self.rollbacks,
        )
        self._ctx.report(health=self._reported)

    def _pause(self, message: str) -> None:
        """Waits for a stop request: a person decides whether and how the run continues."""
        self._ctx.report(activity=f"paused: {message}"[:ACTIVITY])
        while not self._ctx.stop_requested():
            progress.sign()
            time.sleep(POLL_SECONDS)
        raise Stopped(f"stopped while the job was paused: {message}")
