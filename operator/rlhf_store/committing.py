"""Commits snapshots to a store: manifest last, LATEST by compare-and-swap, fenced against earlier trainers."""

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from pydantic import JsonValue

from .archive import Archive, Snapshot
from .errors import Conflict, Missing, StoreError, UnusableStore
from .manifest import (
    ROOT,
    Entry,
    Manifest,
    Root,
    Segment,
    digest_of,
    encode_manifest,
    encode_root,
    is_named_by_content,
)
from .retention import Retention
from .store import JSON_BYTES, Version

log = logging.getLogger(__name__)

_TRIES = 10


class Committer:
    """The one trainer that may commit snapshots to a store, until another one takes over."""

    def __init__(
        self,
        archive: Archive,
        retention: Retention,
        reached: Callable[[str], None],
        root: Root,
        version: Version,
        manifests: dict[str, Manifest],
    ) -> None:
        self._archive, self._store = archive, archive.store
        self._retention, self._reached = retention, reached
        self._root, self._version, self._manifests = root, version, manifests
        self._unwanted: set[str] = set()

    @classmethod
    def take_over(
        cls,
        archive: Archive,
        retention: Retention,
        reached: Callable[[str], None] = lambda _point: None,
        *,
        resume: bool = True,
        run: str = "",
    ) -> "Committer":
        """Fences all earlier trainers, which can commit no more, and deletes their unfinished objects.

        `resume`: continues the run, with its count of rollbacks; `run`: its identity. `reached` is called with the name
        of each point between two writes.

        Raises:
            UnusableStore: other trainers keep taking over.
        """
        for _ in range(_TRIES):
            root, version = archive.read_root()
            changed = {"epoch": root.epoch + 1, "owner": uuid.uuid4().hex, "run": run}
            root = root.model_copy(update=changed if resume else {**changed, "rollbacks": 0})
            try:
                version = archive.store.swap(ROOT, encode_root(root), version)
            except (Conflict, Missing):
                continue  # another trainer starts at the same time: the last one to take over wins
            manifests = archive.manifests(root.cuts)
            garbage = [listed_object.key for listed_object in archive.unreferenced(root, manifests)]
            # Listed while this trainer leads, it is nobody's; later, it may be the next one's, just uploaded.
            if archive.read_root()[0].owner == root.owner:
                archive.store.delete(garbage)
                archive.store.delete_abandoned(is_named_by_content)
            return cls(archive, retention, reached, root, version, manifests)
        raise _fenced(archive, run)

    @property
    def epoch(self) -> int:
        return self._root.epoch

    @property
    def cuts(self) -> tuple[Entry, ...]:
        """The committed snapshots, oldest first."""
        return self._root.cuts

    @property
    def rollbacks(self) -> int:
        """Number of rollbacks to a good snapshot."""
        return self._root.rollbacks

    def commit(
        self,
        step: int,
        state: Mapping[str, JsonValue],
        groups: Mapping[str, tuple[Segment, ...]],
        blobs: Mapping[str, Segment],
        reward: float | None = None,
        *,
        good: bool = True,
    ) -> Snapshot:
        """Commits a snapshot of segments that are in the store already, and deletes those that retention drops.

        Snapshots of this step and later ones, left by a run that went further before it resumed, are removed.

        Raises:
            UnusableStore: another trainer has taken over.
            StoreError: LATEST has been deleted, or as for every request.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = Manifest(
            step=step,
            epoch=self.epoch,
            time=time,
            state=dict(state),
            groups=dict(groups),
            blobs=dict(blobs),
            reward=reward,
            good=good,
            rollbacks=self.rollbacks,
        )
        data = encode_manifest(manifest)
        if len(data) > JSON_BYTES:
            raise ValueError(
                f"the manifest of step {step} has {len(data)} bytes; {JSON_BYTES} can be read again"
            )
        entry = Entry(
            step=step, epoch=self.epoch, digest=digest_of(data), time=time, reward=reward, good=good
        )
        self._reached("manifest")
        self._store.put_new(entry.key, data)
        before = self._root
        earlier = [snapshot for snapshot in before.cuts if snapshot.step < step]
        retained = self._retention.keep([*earlier, entry])
        root = before.model_copy(update={"cuts": retained})
        self._reached("latest")
        self._replace(root)
        self._manifests[entry.key] = manifest
        self._reached("committed")
        self._delete_but_those_kept(before)
        return Snapshot(self._store, entry, manifest)

    def roll_back(self) -> int:
        """Removes the snapshots after the newest good one, and counts the rollback in LATEST; returns the step to
        resume from: 0, the start, if none is good.

        Raises:
            UnusableStore: another trainer has taken over.
        """
        before = self._root
        step = max((snapshot.step for snapshot in before.cuts if snapshot.good), default=0)
        retained = tuple(snapshot for snapshot in before.cuts if snapshot.step <= step)
        self._replace(before.model_copy(update={"cuts": retained, "rollbacks": before.rollbacks + 1}))
        self._delete_but_those_kept(before)
        return step

    def _replace(self, root: Root) -> None:
        try:
            self._version = self._store.swap(ROOT, encode_root(root), self._version)
        except Conflict:
            raise _fenced(self._archive, self._root.run) from None
        except Missing:
            message = (
                f"{ROOT} has been deleted from {self._store.url}; the next trainer goes by what is left there"
            )
            raise StoreError(message) from None
        self._root = root

    def _delete_but_those_kept(self, before: Root) -> None:
        """Deletes snapshots that LATEST has dropped; objects left by a crash are collected by the next trainer."""
        dropped = {snapshot.key for snapshot in before.cuts} - {snapshot.key for snapshot in self.cuts}
        old = [manifest for key in dropped if (manifest := self._manifests.pop(key, None))]
        self._unwanted |= dropped | {segment.key for manifest in old for segment in manifest.segments()}
        try:
            # A manifest that could not be read for a moment: its snapshot may have segments of those dropped.
            unread = [snapshot for snapshot in self.cuts if snapshot.key not in self._manifests]
            self._manifests |= self._archive.manifests(unread)
            self._unwanted -= {s.key for manifest in self._manifests.values() for s in manifest.segments()}
            self._store.delete(sorted(self._unwanted))
            self._unwanted.clear()
        except StoreError as error:
            log.warning("old checkpoints could not be deleted, trying again after the next one: %s", error)


def _fenced(archive: Archive, run: str) -> UnusableStore:
    """The message to a trainer of `run` once another one leads, whose run LATEST names if its host gives it one."""
    url, leader = archive.store.url, ""
    with suppress(StoreError):
        leader = archive.read_root()[0].run
    if leader and leader == run:
        return UnusableStore(
            f"a later trainer of this run has taken over {url} and goes on, so this one ends"
        )
    by = f"another run, {leader:.64}," if leader else "another trainer"
    same = "" if leader else "; if both are the same run, the newer one goes on"
    message = f"{by} has taken over {url}, and this one may not write there any more"
    return UnusableStore(f"{message}: each run needs a store of its own{same}")
