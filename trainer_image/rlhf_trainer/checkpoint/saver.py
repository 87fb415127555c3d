"""Asynchronous checkpoints: a step waits until the tensors are copied, then training goes on during the upload."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any, Self

import torch
from safetensors.torch import save

from rlhf_store.archive import Archive, Snapshot
from rlhf_store.committing import Committer
from rlhf_store.errors import StoreError
from rlhf_store.manifest import Segment, digest_of

from ..process import progress
from ..ranks.ranks import Ranks
from .segments import Batch, Checksums, Group, copied, kind_checksums, unchanged_kinds
from .wrong_snapshot import WrongSnapshot

log = logging.getLogger(__name__)

UPLOADS = 4
"""Concurrent uploads of segments per rank."""


@dataclass
class _Saving:
    """A snapshot being uploaded: `segments` holds this rank's uploads by number, each with its group."""

    step: int
    state: Mapping[str, Any]
    reward: float | None
    good: bool
    updates: Mapping[str, int]
    segments: dict[int, tuple[str, Future[Segment]]] = field(default_factory=dict)
    blobs: dict[str, Future[Segment]] = field(default_factory=dict)
    sums: dict[int, dict[str, int]] = field(default_factory=dict)
    """Checksums of each kind of tensors, by the number of the segment."""

    def uploads(self) -> list[Future[Segment]]:
        return [*(upload for _, upload in self.segments.values()), *self.blobs.values()]


class Saver:
    """Saves snapshots, one at a time; each rank uploads a share of the tensors. As a context manager it waits on exit
    for the snapshot under way, also after an error."""

    def __init__(
        self,
        ranks: Ranks,
        archive: Archive,
        committer: Committer | None,
        *,
        committed: Callable[[Snapshot], None],
        reached: Callable[[str], None] = lambda _point: None,
    ) -> None:
        """A collective. `committer` on rank 0 only; `committed` is called there, on a thread, after each commit."""
        self._ranks, self.archive, self._committer = ranks, archive, committer
        self._on_commit, self._reached, self._beside = committed, reached, ranks.side_group()
        self._uploads = ThreadPoolExecutor(UPLOADS, thread_name_prefix="upload")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._known: set[str] = set()
        self._pending: Future[None] | None = None
        self._last = Checksums({}, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pending is not None:
            wait([self._pending], self.archive.store.patience.total_seconds())

    def knows(self, snapshot: Snapshot) -> None:
        """Segments of a snapshot that was read intact are not uploaded again."""
        self._known = {segment.digest for segment in snapshot.manifest.segments()}

    def begin(
        self,
        step: int,
        state: Mapping[str, Any],
        groups: Mapping[str, Group],
        blobs: Mapping[str, Callable[[], bytes]],
        reward: float | None = None,
        *,
        good: bool = True,
        updates: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Copies all state of a step and starts its upload; a collective. Waits for the snapshot before it. `good`, of
        rank 0: the snapshot may be the target of a rollback. `updates`: see `Task.updates`.

        Raises:
            StoreError, UnusableStore, WrongSnapshot: the snapshot before could not be saved, see `finish`.
            WrongSnapshot: these tensors are not the state of training.
        """
        self.finish()
        saving, began = _Saving(step, dict(state), reward, good, dict(updates)), time.perf_counter()
        # Everything is copied before the upload begins, so that training resumes as soon as possible.
        for number, group, batch in list(copied(groups, self._ranks.rank, self._ranks.world)):
            saving.segments[number] = group, self._uploads.submit(self._send_tensors, saving, number, batch)
        if self._ranks.first:
            saving.blobs = {name: self._uploads.submit(self._send_blob, make) for name, make in blobs.items()}
        self._pending = self._thread.submit(self._conclude, saving)
        log.info("copied the state of step %d in %.3f s", step, time.perf_counter() - began)

    def check(self) -> None:
        """Raises what `finish` would if the snapshot under way has already failed."""
        if self._pending is not None and self._pending.done():
            self.finish()

    def finish(self) -> None:
        """Waits until no upload is under way; bounded by the store's own retries.

        Raises:
            StoreError: the store did not take the snapshot.
            UnusableStore: another trainer has taken the store over.
            WrongSnapshot: it had tensors of the snapshot before.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def rollbacks(self) -> int:
        """Number of rollbacks of this run, as known to rank 0; a collective."""
        committer = self._committer
        _, header = self._ranks.share(lambda: ({}, {"rollbacks": committer.rollbacks if committer else 0}))
        return int(header["rollbacks"])

    def roll_back(self) -> int:
        """Makes the last good snapshot the newest one; returns its step, from which the next start resumes
        (0: the beginning). A collective.

        Raises what `finish` does.
        """
        self.finish()
        committer = self._committer
        _, header = self._ranks.share(lambda: ({}, {"step": committer.roll_back() if committer else 0}))
        return int(header["step"])

    @property
    def busy(self) -> bool:
        """True while a snapshot is being uploaded."""
        return self._pending is not None and not self._pending.done()

    def _conclude(self, saving: _Saving) -> None:
        """Runs on a background thread of all ranks: waits for every rank's uploads, then rank 0 commits."""
        wait(saving.uploads())
        failures = [e for upload in saving.uploads() if (e := upload.exception()) is not None]
        shares = self._shares(saving, str(failures[0]) if failures else None)
        if failures:
            raise failures[0]
        for rank, share in enumerate(shares):
            if share["failed"] is not None:
                raise StoreError(f"rank {rank} could not save its share: {share['failed']}")
        groups: dict[str, tuple[Segment, ...]] = {}
        sums: dict[tuple[str, str], list[int]] = {}
        for _, group, fields, kinds in sorted(row for share in shares for row in share["segments"]):
            groups[group] = (*groups.get(group, ()), Segment.model_validate_json(json.dumps(fields)))
            for kind, rank_sum in kinds.items():
                sums.setdefault((group, kind), []).append(rank_sum)
        before, self._last = self._last, Checksums(saving.updates, sums)
        if unchanged := unchanged_kinds(before, self._last):
            raise WrongSnapshot(
                f"{', '.join(unchanged)} of step {saving.step} are those of the snapshot before, and updates have "
                "changed them since"
            )
        blobs = {name: upload.result() for name, upload in saving.blobs.items()}
        if self._committer is not None:
            snapshot = self._committer.commit(
                saving.step, saving.state, groups, blobs, saving.reward, good=saving.good
            )
            size, url = sum(segment.size for segment in snapshot.manifest.segments()), self.archive.store.url
            log.info("saved the checkpoint of step %d to %s: %.1f MB", snapshot.step, url, size / 1e6)
            self._on_commit(snapshot)
        sent = [*(segment for segments in groups.values() for segment in segments), *blobs.values()]
        self._known = {segment.digest for segment in sent}

    def _shares(self, saving: _Saving, failed: str | None) -> list[dict[str, Any]]:
        """Gathers from each rank its uploaded `segments` as (number, group, segment, checksums), and its failure, if
        any."""
        sent = [
            (number, group, upload.result().model_dump(mode="json", by_alias=True), saving.sums[number])
            for number, (group, upload) in (() if failed else saving.segments.items())
        ]
        text = json.dumps({"segments": sent, "failed": failed}).encode()
        arrays = {"json": torch.frombuffer(bytearray(text), dtype=torch.uint8)}
        return [json.loads(bytes(a["json"].numpy())) for a in self._ranks.gather(arrays, self._beside)]

    def _send_tensors(self, saving: _Saving, number: int, batch: Batch) -> Segment:
        names, saving.sums[number] = tuple(batch), kind_checksums(batch)
        data = save(batch)
        batch.clear()  # frees the copies
        self._reached(f"segment:{number}")
        return self._send(data, names)

    def _send_blob(self, make: Callable[[], bytes]) -> Segment:
        return self._send(make(), ())

    def _send(self, data: bytes, names: tuple[str, ...]) -> Segment:
        segment = Segment(digest=digest_of(data), size=len(data), names=names)
        if segment.digest not in self._known:
            self.archive.store.put(segment.key, data)
        progress.sign()
        return segment
