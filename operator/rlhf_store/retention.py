"""Retention policy: which snapshots are kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from .manifest import Entry


@dataclass(frozen=True)
class Retention:
    """Keeps the `last` newest snapshots, those of every `every` steps and the `best` by evaluation reward; 0: none."""

    last: int = 2
    every: int = 0
    best: int = 0

    def keep(self, snapshots: Sequence[Entry]) -> tuple[Entry, ...]:
        """The snapshots to keep, of `snapshots` by ascending step, in order; always the newest and the newest good
        one."""
        retained = set(range(len(snapshots) - max(1, self.last), len(snapshots)))
        retained |= set([i for i, snapshot in enumerate(snapshots) if snapshot.good][-1:])
        judged = [
            (snapshot.reward, snapshot.step, i)
            for i, snapshot in enumerate(snapshots)
            if snapshot.reward is not None
        ]
        retained |= {i for _, _, i in sorted(judged, reverse=True)[: self.best]}
        return tuple(
            snapshot
            for i, snapshot in enumerate(snapshots)
            if i in retained or (self.every and snapshot.step % self.every == 0)
        )
