"""A snapshot's tensors, read by all ranks in lockstep: what one of them finds damaged is damaged for all."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from rlhf_store import archive
from rlhf_store.archive import Archive
from rlhf_store.manifest import DamagedSnapshot, Entry, Segment

from ..comms.ranks import Ranks
from ..comms.wire import WireError, decode
from .segments import Batch

AHEAD = 3
"""Segments that are fetched while the one before them is put into a model."""
T = TypeVar("T")


class MissingTensor(DamagedSnapshot, LookupError):
    """A name that the snapshot's manifest does not list: of another model, or saved by an earlier release."""


class Snapshot:
    """One snapshot as a task reads it. All ranks ask for the same things in the same order."""

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
        """Raises DamagedSnapshot where the manifest is not there or not intact."""
        return cls(ranks, agreed(ranks, lambda: stored.open(entry)))

    @property
    def groups(self) -> Mapping[str, Sequence[Segment]]:
        return self.stored.manifest.groups

    def tensor(self, group: str, name: str) -> Tensor:
        """Raises DamagedSnapshot where it is not intact, MissingTensor where it is not there."""
        place = self._places.get((group, name))
        if place is None:
            raise MissingTensor(f"the snapshot of step {self.step} has no tensor {name!r} in {group!r}")
        return self._segment(*place)[name]

    def tensors(self, group: str) -> dict[str, Tensor]:
        """All tensors of a small group; empty where there is none."""
        return {name: self.tensor(group, name) for s in self.groups.get(group, ()) for name in s.names}

    def blob(self, name: str) -> bytes:
        """Raises DamagedSnapshot where it is not there or not intact."""
        return agreed(self._ranks, lambda: self.stored.blob(name))

    def _segment(self, group: str, number: int) -> Batch:
        """Fetches it, and beside its use those that will be asked for next; the one before is still at hand."""
        at = group, number
        if at not in self._whole:
            ahead = range(number, min(number + 1 + AHEAD, len(self.groups[group])))
            known = self._fetching
            self._fetching = {
                (group, i): known.get((group, i)) or self._pool.submit(self._fetch, group, i) for i in ahead
            }
            batch = agreed(self._ranks, self._fetching.pop(at).result)
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
    """Result of `read`. Where it finds damage on any rank, all of them raise DamagedSnapshot."""
    found, damage = None, None
    try:
        found = read()
    except DamagedSnapshot as error:
        damage = error
    if ranks.any(damage is not None):
        raise damage or DamagedSnapshot("another rank cannot read this snapshot; see its log")
    return found  # type: ignore[return-value]
