"""Saving beside training: the step waits for the copy out of the tensors, the upload goes on behind it."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save

from rlhf_store.archive import Archive, Cut
from rlhf_store.committing import Committer
from rlhf_store.failures import StoreError
from rlhf_store.manifest import Segment, digest_of

from ..ranks import Ranks
from .segments import Batch, Group, copied

log = logging.getLogger(__name__)

UPLOADS = 4
"""Segments of each rank that are on their way at once."""


@dataclass
class _Saving:
    """A cut on its way: `segments` holds this rank's uploads by number, each with its group."""

    step: int
    state: Mapping[str, Any]
    reward: float | None
    began: float
    segments: dict[int, tuple[str, Future[Segment]]] = field(default_factory=dict)
    blobs: dict[str, Future[Segment]] = field(default_factory=dict)

    def uploads(self) -> list[Future[Segment]]:
        return [*(upload for _, upload in self.segments.values()), *self.blobs.values()]


class Saver:
    """Makes cuts, one at a time; each rank sends a share of the tensors. Its methods are collectives."""

    def __init__(
        self,
        ranks: Ranks,
        archive: Archive,
        committer: Committer | None,
        *,
        committed: Callable[[Cut], None],
        reached: Callable[[str], None] = lambda _point: None,
    ) -> None:
        """`committer` on rank 0 only, where `committed` is told, on another thread, of each cut that is safe."""
        self._ranks, self.archive, self._committer = ranks, archive, committer
        self._told, self._reached = committed, reached
        self._uploads = ThreadPoolExecutor(UPLOADS, thread_name_prefix="upload")
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._known: set[str] = set()
        self._saving: _Saving | None = None
        self._commit: Future[None] | None = None

    def knows(self, cut: Cut) -> None:
        """Segments of a cut that was read intact are not sent again."""
        self._known = {segment.digest for segment in cut.manifest.segments()}

    def begin(
        self,
        step: int,
        state: Mapping[str, Any],
        groups: Mapping[str, Group],
        blobs: Mapping[str, bytes],
        reward: float | None = None,
    ) -> None:
        """Copies all that the cut of a step is made of. Waits for the cut before, where that is not safe yet.

        Raises:
            StoreError, InvalidJob: the cut before could not be saved, see `finish`.
        """
        self.finish()
        saving = _Saving(step, dict(state), reward, time.perf_counter())
        # All is copied before anything is sent: training goes on as soon as can be.
        for number, group, batch in list(copied(groups, self._ranks.rank, self._ranks.world)):
            saving.segments[number] = group, self._uploads.submit(self._send_tensors, number, batch)
        if self._ranks.first:
            saving.blobs = {name: self._uploads.submit(self._send, data, ()) for name, data in blobs.items()}
        self._saving = saving
        log.info("copied the state of step %d in %.3f s", step, time.perf_counter() - saving.began)

    def advance(self) -> None:
        """To be called now and then: commits the cut that is on its way as soon as all ranks have sent their share.

        Raises:
            StoreError, InvalidJob: it could not be saved, see `finish`.
        """
        if self._commit is not None and self._commit.done():
            self._concluded()
        if self._saving is not None and not self._ranks.any(
            any(not upload.done() for upload in self._saving.uploads())
        ):
            self._commit_sent(self._saving)

    def finish(self) -> None:
        """Waits until nothing is on its way any more; the store's own patience bounds it.

        Raises:
            StoreError: the store did not take the cut.
            InvalidJob: another trainer has taken the store over.
        """
        if self._saving is not None:
            wait(self._saving.uploads())
            self._commit_sent(self._saving)
        if self._commit is not None:
            self._concluded()

    @property
    def busy(self) -> bool:
        """Whether a cut is on its way."""
        return self._saving is not None or self._commit is not None

    def _commit_sent(self, saving: _Saving) -> None:
        """All uploads have ended, on all ranks."""
        self._saving = None
        failures = [e for upload in saving.uploads() if (e := upload.exception()) is not None]
        if self._ranks.any(bool(failures)):
            raise (
                failures[0] if failures else StoreError("another rank could not save its share; see its log")
            )
        groups, digests = self._gathered(saving)
        blobs = {name: upload.result() for name, upload in saving.blobs.items()}
        self._known = digests | {segment.digest for segment in blobs.values()}
        if self._committer is not None:
            self._commit = self._commits.submit(self._do_commit, self._committer, saving, groups, blobs)

    def _do_commit(
        self,
        committer: Committer,
        saving: _Saving,
        groups: Mapping[str, tuple[Segment, ...]],
        blobs: Mapping[str, Segment],
    ) -> None:
        cut = committer.commit(saving.step, saving.state, groups, blobs, saving.reward)
        size = sum(segment.size for segment in cut.manifest.segments())
        url = self.archive.store.url
        log.info("saved the checkpoint of step %d to %s: %.1f MB", cut.step, url, size / 1e6)
        self._told(cut)

    def _concluded(self) -> None:
        assert self._commit is not None
        commit, self._commit = self._commit, None
        commit.result()

    def _gathered(self, saving: _Saving) -> tuple[dict[str, tuple[Segment, ...]], set[str]]:
        """The segments of every group in the order of their numbers, and the digests of all."""
        mine = [
            (number, group, upload.result().model_dump(mode="json", by_alias=True))
            for number, (group, upload) in saving.segments.items()
        ]
        text = json.dumps(mine).encode()
        everyone = self._ranks.gather({"json": torch.frombuffer(bytearray(text), dtype=torch.uint8)})
        all_of_them = sorted(row for arrays in everyone for row in json.loads(bytes(arrays["json"].numpy())))
        groups: dict[str, tuple[Segment, ...]] = {}
        for _, group, fields in all_of_them:
            groups[group] = (*groups.get(group, ()), Segment.model_validate_json(json.dumps(fields)))
        return groups, {segment.digest for segments in groups.values() for segment in segments}

    def _send_tensors(self, number: int, batch: Batch) -> Segment:
        names = tuple(batch)
        data = save(batch)
        batch.clear()  # the copies are not needed any more
        self._reached(f"segment:{number}")
        return self._send(data, names)

    def _send(self, data: bytes, names: tuple[str, ...]) -> Segment:
        segment = Segment(digest=digest_of(data), size=len(data), names=names)
        if segment.digest not in self._known:
            self.archive.store.put(segment.key, data)
        return segment
