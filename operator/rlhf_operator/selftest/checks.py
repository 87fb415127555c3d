"""Checks of a selftest: observations compared with invariants; pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean
from typing import Any

from rlhf_api.roles import Role
from rlhf_api.sections.health import has_outliers
from rlhf_api.spec import Spec

from .derived import RAISED, has_canary
from .left import Parameters
from .trial import Observations, roles_to_kill
from .watch import Kill

ERRORS = 3.0
"""Number of standard errors by which the canary's reward must rise."""
ENDS = 4
"""Number of steps at either end of the canary's, whose means are compared."""
_DEADLINES = {
    Role.TRAINER: "trainer.backoffLimit, and the checkpoint that it was to go on from",
    Role.GENERATOR: "generator.startupTimeoutSeconds and generator.timeoutSeconds",
    Role.REWARD: "reward.startupTimeoutSeconds and reward.timeoutSeconds",
    Role.REFERENCE: "reference.startupTimeoutSeconds and reference.timeoutSeconds",
    Role.ENVIRONMENT: "environment.startupTimeoutSeconds",
}
"""Settings to look at, besides its log, if a role did not come back."""


@dataclass(frozen=True)
class Check:
    """A line of the table. `passed` None: the check does not apply to this job, for the reason in `seen`; `look`: where
    to look for the cause of a failure, empty if the run ended before."""

    name: str
    passed: bool | None
    seen: str
    look: str = ""


def judged(spec: Spec, observations: Observations, per_step: int, answers: int) -> list[Check]:
    """Every check of a job's selftest; steps had `per_step` prompts with `answers` responses each."""
    limit = spec.health.logprob_difference if spec.graph.generates else None
    checks = [drift(observations.still), agreement(observations.lines, limit, spec.outlier_limit())]
    checks += [kill(role, observations.kills.get(role)) for role in roles_to_kill(spec)]
    checks += [
        resume(observations.stopped, observations.ended, observations.wanted),
        ledger(observations.state, observations.ended, per_step),
    ]
    if has_canary(spec):
        checks.append(canary(observations.lines, observations.stopped, per_step * answers))
    else:
        checks.append(Check("canary", None, "no responses are sampled and scored, so no reward can rise"))
    return checks


def drift(still: Sequence[Parameters]) -> Check:
    """With learning rate 0, no parameter differs between the first snapshot and the last, in spite of all kills between
    them.
    """
    if len(still) < 2 or still[-1][0] - still[0][0] < 2:
        return _not_reached("drift")
    (begin, before), (end, after) = still[0], still[-1]
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    outcome = (
        f"{len(changed)} of {len(before)} parameters changed from step {begin} to {end} at learning rate 0"
    )
    hint = f"the optimizer (trainer.deepspeed), and what was restored after a kill: {', '.join(changed[:3])}"
    return Check("drift", bool(before) and not changed, outcome, hint)


def agreement(lines: Sequence[Mapping[str, Any]], limit: float | None, outliers: float) -> Check:
    """Trainer and generators agree on the log-probabilities of sampled tokens, averaged over a step and at its worst
    tokens. `limit`: of the mean, None if nothing is sampled, 0 if the job sets none; `outliers`: `outlier_limit`."""
    if limit is None:
        return Check("agreement", None, "no responses are sampled, so there is one engine alone")
    if not limit and outliers == 1:
        return Check(
            "agreement", None, "health.logprobDifference is 0 and logprobOutliers 1: the job sets no limit"
        )
    if not lines:
        return _not_reached("agreement")
    compared = [line for line in lines if "logprob_difference" in line]
    if not compared:
        return Check("agreement", None, "the algorithm's loss measures no logprob_difference")

    def broken(line: Mapping[str, Any]) -> bool:
        return has_outliers(line, outliers) or not (not limit or line["logprob_difference"] <= limit)

    def size(line: Mapping[str, Any]) -> tuple[bool, float]:
        mean = float(line["logprob_difference"])
        return broken(line), mean if isfinite(mean) else float("inf")

    worst, apart = max(compared, key=size), sum(int(line.get("logprob_outliers", 0)) for line in compared)
    mean, step = float(worst["logprob_difference"]), int(worst["step"])
    outcome = f"log-probabilities differ by {mean:.2g} at most, in step {step} of {len(compared)}"
    outcome += f"; the limit is {limit:g}"
    if apart:
        largest = max(float(line.get("logprob_difference_max", 0.0)) for line in compared)
        outcome += f"; by more than 1 nat at {apart} tokens ({largest:.2g} at most), "
        outcome += f"of which a step may have a share of {outliers:g}"
    hint = "docs/concepts/health.md: weights not loaded as they are, quantisation, dtype, engineArguments"
    return Check("agreement", not broken(worst), outcome, hint)


def kill(role: Role, kill_record: Kill | None) -> Check:
    """A role whose process or pod was killed was restarted, and a further step was done."""
    name, hint = f"kill {role.value}", f"the log of {role.value}-0; {_DEADLINES[role]}"
    if kill_record is None:
        return _not_reached(name)
    if kill_record.seconds is None:
        return Check(name, False, f"after step {kill_record.step}, and no further step was done", hint)
    seconds = f"{kill_record.seconds:.0f} s"
    outcome = f"after step {kill_record.step}; started again, and a further step done {seconds} later"
    return Check(name, True, outcome)


def ledger(state: Mapping[str, Any] | None, steps: int, per_step: int) -> Check:
    """Every issued prompt was trained on exactly once, in steps of `per_step`. `state`: of the last snapshot; for given
    rows it has only a position."""
    if state is None:
        return _not_reached("ledger")
    expected = steps * per_step
    if "ledger" not in state:
        drawn = int(state["position"])
        return Check(
            "ledger",
            drawn == expected,
            f"{drawn} of {expected} rows drawn, each once",
            "the log of trainer-0",
        )
    ledger_state = state["ledger"]
    issued, trained, filtered = (_count(ledger_state[name]) for name in ("issued", "trained", "filtered"))
    dropped = sum(map(_count, ledger_state["dropped"].values()))
    lost, twice = issued - trained - filtered - dropped, max(0, expected - trained - filtered - dropped)
    outcome = f"lost {lost}, trained twice {twice}, of {issued} prompts in {steps} steps"
    if dropped:
        outcome += f"; dropped {dropped}: {'; '.join(ledger_state['dropped'])}"
    return Check(
        "ledger", lost == twice == dropped == 0, outcome, "the ledger in its status, and the log of trainer-0"
    )


def canary(lines: Sequence[Mapping[str, Any]], after: int | None, responses: int) -> Check:
    """The canary's reward rises after step `after`, from its first steps to its last ones, by more than ERRORS standard
    errors of that difference. `responses`: number per step.

    The first step after a resume is skipped: it may train on responses that were scored before.
    """
    if after is None:
        return _not_reached("canary")
    rows = [line for line in lines if int(line["step"]) > after + 1 and "reward_mean" in line]
    hint = f"optimizer.learningRate, of which this took {RAISED:g} times as much, and the losses in metrics.jsonl"
    if len(rows) < 2 * ENDS:
        return Check("canary", False, f"only {len(rows)} steps were made on its reward", hint)
    ends = rows[:ENDS], rows[-ENDS:]
    begin, end = (fmean(float(row["reward_mean"]) for row in part) for part in ends)
    variances = [float(row["reward_std"]) ** 2 / responses for part in ends for row in part]
    least = ERRORS * sqrt(sum(variances)) / ENDS
    outcome = f"reward from {begin:.3f} to {end:.3f} in {len(rows)} steps; it must rise by {least:.3f}"
    return Check("canary", end - begin > least, outcome, hint)


def resume(stopped: int | None, ended: int, expected: int | None) -> Check:
    """A run stopped after one step resumes and reaches its last."""
    if stopped is None or expected is None:
        return _not_reached("resume")
    outcome = f"stopped after step {stopped}, ended with {ended} of {expected}"
    return Check("resume", ended == expected, outcome, "the log of trainer-0, and checkpoints of the run")


def _not_reached(name: str) -> Check:
    return Check(name, False, "not reached: the run ended before")


def _count(runs: Iterable[Sequence[int]]) -> int:
    """Number of positions in intervals [start, end)."""
    return sum(end - start for start, end in runs)
