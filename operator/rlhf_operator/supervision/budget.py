"""Restart budgets: a limit within a time window, and exponential backoff; pure. Times are seconds on one clock."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlhf_api.roles import Role
from rlhf_api.spec import Spec

_FIRST, _LONG, _LONGEST = 0.5, 10.0, 300.0
"""Backoff in seconds: first, longest within the budget, longest of all."""
_NEVER = float("-inf")
_CALM = 2 * _LONGEST
"""Time since the last restart after which disruptions are forgotten, seconds; kubelets forget crashes likewise."""


@dataclass(frozen=True)
class Restarts:
    """Restarts of one role."""

    total: int = 0
    """Counted restarts of the whole run."""
    failures: int = 0
    """Counted restarts of the present window."""
    disruptions: int = 0
    """Uncounted restarts, each soon after the one before."""
    since: float = _NEVER
    """Start of the window: its first restart; -inf without a window."""
    last: float = _NEVER
    cause: str = ""
    """`Start.cause` of the last counted restart."""

    def at(self, now: float, window: float) -> "Restarts":
        """The count at `now`: without failures of an expired window, and without disruptions long ago."""
        calm = replace(self, disruptions=0) if now >= self.last + _CALM else self
        return calm if now < self.since + window else replace(calm, failures=0, since=_NEVER)

    def after(self, now: float, window: float, *, counts: bool, cause: str = "") -> "Restarts":
        """The count after one more restart, which follows from `cause`."""
        left = self.at(now, window)
        return replace(
            left,
            total=left.total + counts,
            failures=left.failures + counts,
            disruptions=left.disruptions + (not counts),
            since=now if left.since == _NEVER else left.since,
            last=now,
            cause=cause if counts else left.cause,
        )

    def pause(self, limit: int) -> float:
        """Backoff in seconds, from an end and from the last restart, to the next start."""
        longest = _LONG if self.failures < limit else _LONGEST
        return max(_pause(self.failures, longest), _pause(self.disruptions, _LONGEST))


def _pause(restarts: int, longest: float) -> float:
    return min(_FIRST * 2.0 ** min(restarts, 16), longest)


def budget(spec: Spec, role: Role) -> tuple[int, int]:
    """`backoffLimit` and `backoffWindowSeconds`."""
    section = spec.section(role)
    return section.backoff_limit, section.backoff_window_seconds


def current_window(spec: Spec, restarts: Mapping[Role, Restarts], role: Role, now: float) -> Restarts:
    """The role's restarts in its present window."""
    return restarts.get(role, Restarts()).at(now, budget(spec, role)[1])


def record_restart(
    spec: Spec, restarts: Mapping[Role, Restarts], role: Role, now: float, *, counts: bool, cause: str = ""
) -> dict[Role, Restarts]:
    """The restarts of all roles, with one more of this one."""
    window = budget(spec, role)[1]
    return {**restarts, role: restarts.get(role, Restarts()).after(now, window, counts=counts, cause=cause)}


def totals(restarts: Mapping[Role, Restarts]) -> dict[Role, int]:
    return {role: each.total for role, each in restarts.items()}
