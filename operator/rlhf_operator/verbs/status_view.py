"""Formats everything about one job on one page; pure."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from rlhf_api.contract.status import Condition, JobStatus, TeacherStatus
from rlhf_api.roles import Role

from ..archive.export import export_command
from ..console.text import age, columns, one_line
from ..job.names import CONTROLLER
from ..job.snapshot import Job
from ..local.display.figures import time_left
from ..supervision.exit_reasons import ledger_words
from .format import checkpoint_words, figures, state

Event = Mapping[str, Any]
"""A core/v1 Event."""

_COLOURS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Suspended": "yellow"}
_BAR = 40
_EVENTS = 8
_GOOD = {
    "Ready": "True",
    "RolesReady": "True",
    "PodsScheduled": "True",
    "Healthy": "True",
    "Complete": "True",
}
"""Healthy status of condition types; any other condition is healthy when not True."""


def page(job: Job, status: JobStatus | None, events: Sequence[Event], now: datetime.datetime) -> Text:
    """`status`: the job's parsed status; None before an operator has seen it."""
    about = [f"namespace {job.namespace}", f"made {age(job.body['metadata']['creationTimestamp'], now)} ago"]
    if job.queue:
        about.append(f"queue {job.queue}")
    if job.controller != CONTROLLER:
        about.append(f"managed by {one_line(job.controller)}")
    if status is None:
        doing = f"{state(None)}; is one installed, and running?"
        if job.controller != CONTROLLER:
            doing = "its manager has written no status yet"
        unseen = ((job.name, "bold"), "  ", (doing, "yellow"), (f"  ({', '.join(about)})", "dim"))
        return Text("\n\n").join(part for part in (Text.assemble(*unseen), _events(events, now)) if part)
    return describe_status(job.name, about, status, events, now)


def describe_status(
    name: str, about: Sequence[str], status: JobStatus, events: Sequence[Event], now: datetime.datetime
) -> Text:
    """All of a status. `about`: what stands beside the job's name, where and since when it is."""
    parts = [_head(name, about, status, now)]
    parts += [_progress(status, now), _roles(status), _plan(status), _generators(status, now)]
    parts += [_conditions(status, now), _events(events, now)]
    return Text("\n\n").join(part for part in parts if part)


def _head(name: str, about: Sequence[str], status: JobStatus, now: datetime.datetime) -> Text:
    about = [*about]
    if status.start_time and status.completion_time:
        about.append(f"ended {age(status.completion_time, now)} ago")
    doing = one_line(status.activity or "") if not status.completion_time else ""
    words = Text.assemble(
        (name, "bold"),
        "  ",
        (status.phase, f"bold {_COLOURS.get(status.phase, 'cyan')}"),
        f"  {doing}" if doing else "",
        (f"  ({', '.join(about)})", "dim"),
    )
    if status.message:
        words.append(f"\n{one_line(status.message)}", "red" if status.phase == "Failed" else "")
    return words


def _progress(status: JobStatus, now: datetime.datetime) -> Text:
    if not status.total_steps:
        return Text()
    full = round(_BAR * min(status.step / status.total_steps, 1))
    left = time_left(status, now)
    until = f", {left} left (until {status.estimated_end})" if left else ""
    lines = [
        Text.assemble(
            "[",
            ("#" * full, _COLOURS.get(status.phase, "cyan")),
            "-" * (_BAR - full),
            f"]  step {status.step}/{status.total_steps}{until}",
        )
    ]
    if known := figures(status):
        pairs = [Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in known]
        lines.append(Text("  ").join(pairs))
    if saved := status.last_checkpoint:
        lines.append(Text.assemble(("checkpoint ", "dim"), one_line(checkpoint_words(saved, now))))
        if status.phase in ("Failed", "Suspended"):  # Succeeded: the job has left its model
            command = export_command(saved.uri, saved.step, f"policy-{saved.step}")
            lines.append(Text.assemble(("its model ", "dim"), one_line(command)))
    if status.gpu_seconds is not None:
        cost = f", cost {status.cost:,.2f}" if status.cost is not None else ""
        lines.append(Text.assemble(("used ", "dim"), f"{status.gpu_seconds / 3600:,.1f} GPU-hours{cost}"))
    if status.ledger:
        lines.append(
            Text.assemble(
                ("prompts ", "dim"), (ledger_words(status.ledger), "red" if status.ledger.lost else "")
            )
        )
    return Text("\n").join(lines)


def _roles(status: JobStatus) -> Text:
    rows = list[tuple[str, str, str, str]]()
    for role in Role:
        if s := status.roles.get(role):
            rows.append((role.value, f"{s.ready}/{s.desired}", str(s.restarts), _gpus(status, role)))
            rows += [(_teacher(each), f"{each.ready}/{each.desired}", "", "") for each in s.teachers or ()]
    return _table([("ROLE", "READY", "RESTARTS", "GPUS"), *rows]) if rows else Text()


def _teacher(status: TeacherStatus) -> str:
    return f"  {one_line(status.name)} ({status.processes})"


def _gpus(status: JobStatus, role: Role) -> str:
    """Number of GPUs of all its pods."""
    plan = status.plan.get(role)
    return str(plan.gpus) if plan else ""


def _plan(status: JobStatus) -> Text:
    """Memory per GPU, for roles with a known plan."""
    lines = [f"{role.value}: {one_line(plan.memory)}" for role, plan in status.plan.items() if plan.memory]
    return _section("Memory of one GPU", lines)


def _generators(status: JobStatus, now: datetime.datetime) -> Text:
    rows = [
        (
            one_line(member.name),
            "yes" if member.ready else "no",
            _number(member.weight_version),
            _number(member.epoch),
            f"{age(member.last_sync_time, now)} ago" if member.last_sync_time else "-",
        )
        for member in status.generators
    ]
    return _table([("GENERATOR", "READY", "WEIGHTS", "EPOCH", "LAST SYNC"), *rows]) if rows else Text()


def _conditions(status: JobStatus, now: datetime.datetime) -> Text:
    rows = [
        (
            c.type,
            c.status,
            f"{age(c.last_transition_time, now)} ago",
            one_line(f"{c.reason}: {c.message}").rstrip(": "),
        )
        for c in status.conditions
        if not _as_it_should_be(c)
    ]
    return _section("Conditions that are not as they should be", columns(rows) if rows else [])


def _as_it_should_be(condition: Condition) -> bool:
    ended = condition.reason == "JobEnded"  # no role has a problem
    return ended or condition.status == _GOOD.get(condition.type, "False")


def _events(events: Sequence[Event], now: datetime.datetime) -> Text:
    newest = sorted(events, key=_time)[-_EVENTS:]
    rows = [
        (
            f"{age(_time(event), now)} ago",
            str(event.get("type", "")),
            str(event.get("reason", "")),
            _message(event),
        )
        for event in newest
    ]
    return _section("Events", columns(rows) if rows else [])


def _time(event: Event) -> str:
    """Time of an event's last occurrence."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
    return str(last or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _message(event: Event) -> str:
    times = (event.get("series") or {}).get("count") or event.get("count") or 1
    return one_line(event.get("message") or "") + (f" ({times} times)" if times > 1 else "")


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _table(rows: Sequence[Sequence[str]]) -> Text:
    head, *lines = columns(rows)
    return Text.assemble((head, "dim"), *(f"\n{line}" for line in lines))


def _section(title: str, lines: Sequence[str]) -> Text:
    return Text.assemble((title, "dim"), *(f"\n  {line}" for line in lines)) if lines else Text()
