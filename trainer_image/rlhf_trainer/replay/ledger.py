"""Prompt ledger: the state of every prompt, so that each is trained on exactly once per data epoch.

A prompt is identified by its position in the run's prompt order: position // rows is its data epoch. The ledger is part
of each snapshot. A resume discards later training and later entries together, which makes it exactly once: weights and
ledger are always of the same step.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

from rlhf_api.contract.report import LedgerStatus

REASONS = 16
REASON_LENGTH = 200
"""Maximum number of different drop reasons, beyond which they count as `OTHER`, and length of each in characters."""
OTHER = "other reasons"


class LedgerError(RuntimeError):
    """A prompt would be trained on twice, or without having been issued: a bug of ours."""


class Runs:
    """A set of positions as sorted intervals [start, end): compact, because positions come in order."""

    def __init__(self, runs: Iterable[Iterable[int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in runs:
            if start >= end or (self._ends and start <= self._ends[-1]):
                raise ValueError(
                    f"ranges of positions must ascend with gaps between them; got [{start}, {end})"
                )
            self._starts.append(start)
            self._ends.append(end)

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self._starts, position) - 1
        return at >= 0 and position < self._ends[at]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def add(self, position: int) -> None:
        """Adds a position that is not in the set yet."""
        at = bisect_right(self._starts, position)
        joins_left = at > 0 and self._ends[at - 1] == position
        joins_right = at < len(self._starts) and self._starts[at] == position + 1
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif joins_left:
            self._ends[at - 1] = position + 1
        elif joins_right:
            self._starts[at] = position
        else:
            self._starts.insert(at, position)
            self._ends.insert(at, position + 1)

    def remove(self, position: int) -> None:
        """Removes a position of the set."""
        at = bisect_right(self._starts, position) - 1
        parts = (self._starts[at], position), (position + 1, self._ends[at])
        left = [(start, end) for start, end in parts if start < end]
        self._starts[at : at + 1] = [start for start, _ in left]
        self._ends[at : at + 1] = [end for _, end in left]

    def count(self, low: int, high: int) -> int:
        """Number of positions of the set in [low, high)."""
        pairs = zip(self._starts, self._ends, strict=True)
        return sum(max(0, min(end, high) - max(start, low)) for start, end in pairs)

    @property
    def end(self) -> int:
        """One more than the greatest position; 0 for an empty set."""
        return self._ends[-1] if self._ends else 0

    def state(self) -> list[list[int]]:
        return [list(run) for run in zip(self._starts, self._ends, strict=True)]


class Ledger:
    """States of the prompts of a run whose dataset has `rows` rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._issued, self._returned, self._trained = Runs(), Runs(), Runs()
        self._filtered = Runs()
        self._dropped: dict[str, Runs] = {}
        self._requeued: Counter[int] = Counter()  # by data epoch

    def issue(self, positions: Iterable[int]) -> None:
        """The prompts are about to be sent to a generator."""
        for position in positions:
            self._check(position not in self._issued, position, "issued a second time")
            self._issued.add(position)

    def requeue(self, positions: Iterable[int]) -> None:
        """The generator failed; the prompts are sent to another one."""
        for position in positions:
            self._check_open(position, "requeued")
            self._requeued[position // self.rows] += 1

    def answer(self, positions: Iterable[int]) -> None:
        """The prompts' responses have arrived."""
        for position in positions:
            self._check_open(position, "answered")
            self._check(position not in self._returned, position, "answered a second time")
            self._returned.add(position)

    def give_up(self, positions: Iterable[int]) -> None:
        """The prompts' responses are not trained on after all: others are asked for."""
        for position in positions:
            self._check(position in self._returned, position, "given up without an answer")
            self._check_open(position, "given up")
            self._returned.remove(position)

    def train(self, positions: Iterable[int]) -> None:
        """The prompts' responses are trained on for the first time; replays are not recorded."""
        for position in positions:
            self._check(position in self._returned, position, "trained on without a response")
            self._check_open(position, "trained on")
            self._trained.add(position)

    def drop(self, positions: Iterable[int], reason: str) -> None:
        """The prompts will never be trained on."""
        reason = reason[:REASON_LENGTH]
        if reason not in self._dropped and len(self._dropped) >= REASONS:
            reason = OTHER
        for position in positions:
            self._check_open(position, "dropped")
            self._dropped.setdefault(reason, Runs()).add(position)

    def filter(self, positions: Iterable[int]) -> None:
        """The prompts were answered, but the algorithm filters them out: all their responses have the same score."""
        for position in positions:
            self._check(position in self._returned, position, "filtered without a response")
            self._check_open(position, "filtered")
            self._filtered.add(position)

    @property
    def dropped(self) -> Mapping[str, int]:
        """Number of dropped prompts by reason."""
        return {reason: len(runs) for reason, runs in self._dropped.items()}

    def count_lost(self, held: Iterable[int]) -> int:
        """Number of prompts that were issued and are neither trained on nor dropped nor in `held`, the prompts in
        progress."""
        in_hand = sum(self._open(position) for position in set(held))
        settled = len(self._trained) + len(self._filtered) + sum(map(len, self._dropped.values()))
        return len(self._issued) - settled - in_hand

    def status(self, held: Iterable[int]) -> LedgerStatus:
        """Counts of the newest prompt's data epoch; `dropped` and `lost` are of the whole run."""
        epoch = max(0, self._issued.end - 1) // self.rows
        low, high = epoch * self.rows, (epoch + 1) * self.rows
        return LedgerStatus(
            epoch=epoch,
            issued=self._issued.count(low, high),
            returned=self._returned.count(low, high),
            trained=self._trained.count(low, high),
            requeued=self._requeued[epoch],
            filtered=self._filtered.count(low, high),
            dropped=sum(map(len, self._dropped.values())),
            lost=self.count_lost(held),
        )

    def state(self) -> dict[str, Any]:
        """The ledger as JSON: intervals [start, end) of positions."""
        return {
            "rows": self.rows,
            "issued": self._issued.state(),
            "returned": self._returned.state(),
            "trained": self._trained.state(),
            "filtered": self._filtered.state(),
            "dropped": {reason: runs.state() for reason, runs in self._dropped.items()},
            "requeued": {str(epoch): count for epoch, count in self._requeued.items()},
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Self:
        """The inverse of `state`."""
        made = cls(state["rows"])
        made._issued, made._returned, made._trained = (
            Runs(state[name]) for name in ("issued", "returned", "trained")
        )
        made._filtered = Runs(state.get("filtered", ()))
        made._dropped = {reason: Runs(runs) for reason, runs in state["dropped"].items()}
        made._requeued = Counter({int(epoch): count for epoch, count in state["requeued"].items()})
        return made

    def _open(self, position: int) -> bool:
        """True if the prompt was issued and is neither trained on nor filtered nor dropped."""
        settled = position in self._trained or position in self._filtered
        settled = settled or any(position in runs for runs in self._dropped.values())
        return position in self._issued and not settled

    def _check_open(self, position: int, what: str) -> None:
        self._check(position in self._issued, position, f"{what} without having been issued")
        self._check(self._open(position), position, f"{what} after it was trained on or dropped")

    def _check(self, right: bool, position: int, what: str) -> None:
        if not right:
            epoch, place = divmod(position, self.rows)
            raise LedgerError(f"prompt {place} of epoch {epoch} (position {position}) is {what}")
