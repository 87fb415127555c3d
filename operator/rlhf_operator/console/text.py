"""Formats text for people: durations, aligned columns, one line; pure."""

import datetime
from collections.abc import Sequence

from rlhf_api.host.printing import clean


def span(seconds: float) -> str:
    """A duration in its two largest units: `40s`, `2m 40s`, `3h 05m`, `4d 02h`."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}h"
    if hours:
        return f"{hours}h {minute:02d}m"
    return f"{minutes}m {second:02d}s" if minutes else f"{second}s"


def age(since: str, now: datetime.datetime) -> str:
    """Age of a Kubernetes time."""
    return span((now - datetime.datetime.fromisoformat(since)).total_seconds())


def time_text(now: datetime.datetime) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes times."""
    return now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def columns(rows: Sequence[Sequence[str]], gap: int = 3) -> list[str]:
    """Rows of cells as aligned lines, each cell in one."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    space = " " * gap
    return [
        space.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def one_line(text: str) -> str:
    """Text from elsewhere, which may contain anything, as part of a line."""
    return clean(text).replace("\n", " ").replace("\t", " ")


def indented(text: str, by: str) -> str:
    """The lines of a text, each after `by`, without control characters."""
    return "\n".join(by + one_line(line) for line in (text.splitlines() or [""]))
