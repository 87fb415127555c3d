"""Reads a snapshot's tensors on all ranks in lockstep; damage found by one rank is raised on all."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from rlhf_store import archive
from rlhf_store.archive import Archive
from rlhf_store.errors import DamagedSnapshot
from rlhf_store.manifest import Entry, Segment

from ..process import progress
from ..ranks.ranks import Ranks
from ..transport.wire import WireError, decode
from .segments import Batch

AHEAD = 3
"""Segments prefetched while the one before them is loaded into a model."""
T = TypeVar("T")


class MissingTensor(DamagedSnapshot, LookupError):
    """The snapshot's manifest does not list this tensor: it is of another model or of an earlier release."""


class Snapshot:
    """One snapshot, opened for reading. All ranks make the same calls in the same order."""

    def __init__(self, ranks: Ranks, snapshot: archive.Snapshot) -> None:
        self._ranks, self.stored = ranks, snapshot
        self.step, self.time, self.state = snapshot.step, snapshot.time, snapshot.state
        self.blobs = snapshot.blobs
        self._places = {
            (group, name): (group, number)
            for group, segments in snapshot.manifest.groups.items()
            for number, segment in enumerate(segments)
            for name in segment.names
        }
        self._pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="fetch")
        self._fetching: dict[tuple[str, int], Future[Batch]] = {}
        self._whole: dict[tuple[str, int], Batch] = {}

    @classmethod
    def open(cls, ranks: Ranks, stored: Archive, entry: Entry) -> "Snapshot":
        """Opens a snapshot. Raises DamagedSnapshot where its manifest is missing or damaged."""
        return cls(ranks, agreed(ranks, lambda: stored.open(entry)))

    @property
    def groups(self) -> Mapping[str, Sequence[Segment]]:
        return self.stored.manifest.groups

    def tensor(self, group: str, name: str) -> Tensor:
        """One tensor. Raises DamagedSnapshot where it is damaged, MissingTensor where it is missing."""
        place = self._places.get((group, name))
        if place is None:
            raise MissingTensor(f"the snapshot of step {self.step} has no tensor {name!r} in {group!r}")
        return self._segment(*place)[name]

    def tensors(self, group: str) -> dict[str, Tensor]:
        """All tensors of a small group; empty for a group that the snapshot lacks."""
        return {name: self.tensor(group, name) for s in self.groups.get(group, ()) for name in s.names}

    def blob(self, name: str) -> bytes:
        """One blob. Raises DamagedSnapshot where it is missing or damaged."""
        return agreed(self._ranks, lambda: self.stored.blob(name))

    def _segment(self, group: str, number: int) -> Batch:
        """Fetches a segment and starts to prefetch the next ones; the segment before stays cached."""
        at = group, number
        if at not in self._whole:
            ahead = range(number, min(number + 1 + AHEAD, len(self.groups[group])))
            known = self._fetching
            self._fetching = {
                (group, i): known.get((group, i)) or self._pool.submit(self._fetch, group, i) for i in ahead
            }
            batch = agreed(self._ranks, self._fetching.pop(at).result)
            progress.sign()
            self._whole = dict([*self._whole.items()][-1:]) | {at: batch}
        return self._whole[at]

    def _fetch(self, group: str, number: int) -> Batch:
        segment = self.groups[group][number]
        data, what = self.stored.read(segment), f"segment {segment.digest[:12]} of step {self.step}"
        try:
            batch = decode(data)[0]
        except WireError as error:
            raise DamagedSnapshot(f"{what}: {error}") from error
        if batch.keys() != set(segment.names):
            raise DamagedSnapshot(f"{what} has other names than its manifest says")
        return batch


def agreed(ranks: Ranks, read: Callable[[], T]) -> T:
    """Result of `read` on this rank. Where any rank finds damage, all ranks raise DamagedSnapshot."""
    content, damage = None, None
    try:
        content = read()
    except DamagedSnapshot as error:
        damage = error
    if ranks.any(damage is not None):
        raise damage or DamagedSnapshot("another rank cannot read this snapshot; see its log")
    return content  # type: ignore[return-value]
