"""Read access to the committed snapshots of a store."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path

from pydantic import JsonValue

from .errors import DamagedSnapshot, Missing, TooLarge, UnusableStore
from .manifest import (
    CUTS,
    ROOT,
    SEGMENTS,
    Entry,
    Manifest,
    Root,
    Segment,
    decode_manifest,
    decode_root,
    digest_of,
    is_named_by_content,
    is_whole,
    part_names,
)
from .store import DEFAULTS, Listed, Store, StoreOptions, Version

log = logging.getLogger(__name__)


class Snapshot:
    """One snapshot as its manifest describes it; segments are read, and their hashes checked, on demand."""

    def __init__(self, store: Store, entry: Entry, manifest: Manifest) -> None:
        self._store, self.entry, self.manifest = store, entry, manifest

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def time(self) -> str:
        return self.manifest.time

    @property
    def state(self) -> Mapping[str, JsonValue]:
        return self.manifest.state

    @property
    def blobs(self) -> tuple[str, ...]:
        """The names of its blobs, sorted."""
        return tuple(sorted(filter(is_whole, self.manifest.blobs)))

    def parts(self, name: str) -> tuple[Segment, ...]:
        """The segments that make up a blob, in order; none if the snapshot has no such blob."""
        segments = (self.manifest.blobs.get(part) for part in part_names(name))
        return tuple(segment for segment in takewhile(bool, segments) if segment)

    def blob(self, name: str) -> bytes:
        """Reads a blob. Raises DamagedSnapshot if it is missing or damaged."""
        if not (parts := self.parts(name)):
            raise DamagedSnapshot(f"the snapshot of step {self.step} has no {name!r}")
        return b"".join(map(self.read, parts))

    def download(self, name: str, file: Path) -> None:
        """Writes a blob to a file, with at most one of its further parts in memory. Raises DamagedSnapshot if it is
        missing or damaged."""
        segment, *further = self.parts(name)
        self._download(segment, f"{name} of step {self.step}", file)
        with file.open("ab") as written:
            for part in further:
                written.write(self.read(part))

    def _download(self, segment: Segment, what: str, file: Path) -> None:
        try:
            self._store.download(self._store.attributes(segment.key), file)
        except Missing:
            raise DamagedSnapshot(f"{what} is missing") from None
        with file.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        if digest != segment.digest:
            raise DamagedSnapshot(f"{what} is not what its hash says")

    def read(self, segment: Segment) -> bytes:
        """Reads a segment. Raises DamagedSnapshot if it is missing or damaged."""
        what = f"segment {segment.digest[:12]} of step {self.step}"
        try:
            data = self._store.get(segment.key, segment.size)
        except Missing:
            raise DamagedSnapshot(f"{what} is missing") from None
        except TooLarge as error:
            raise DamagedSnapshot(f"{what} is not what its hash says: {error}") from None
        if digest_of(data) != segment.digest:
            raise DamagedSnapshot(f"{what} is not what its hash says")
        return data

    def verify(self) -> Iterator[Segment]:
        """Reads every segment and yields the intact ones. Raises DamagedSnapshot at the first damaged one."""
        for segment in self.manifest.segments():
            self.read(segment)
            yield segment


class Archive:
    """The committed snapshots of a store."""

    def __init__(self, url: str, options: StoreOptions = DEFAULTS) -> None:
        """Raises UnusableStore if the URL does not name a store that can be opened; see `Store`."""
        self.store = Store(url, options)

    def read_root(self) -> tuple[Root, Version | None]:
        """The root and its version, for compare-and-swap; an empty root and None in a new store.

        If LATEST is damaged or missing, the root is rebuilt from the manifests that are there.

        Raises:
            UnusableStore: the store is of another release's format, or not one of its manifests can be read. To take it
                for a new one would delete it.
        """
        version = None
        try:
            version = self.store.read(ROOT)
            return decode_root(version.data), version
        except Missing:
            problem = f"{ROOT} is missing"
        except DamagedSnapshot as error:
            problem = str(error)
        except UnusableStore as error:
            raise UnusableStore(f"cannot use {self.store.url}: {error}") from None
        listed = [Entry.of_key(listed_object.key) for listed_object in self.store.list(CUTS)]
        if not (written := [entry for entry in listed if entry is not None]):
            return Root(), version
        log.error("DAMAGED STORE, using the manifests that are readable: %s", problem)
        if not (manifests := self.manifests(written)):
            message = (
                f"every checkpoint in {self.store.url} is damaged or of another release, see the log ({problem}); "
                "take the release that wrote them, or begin a new run in another store"
            )
            raise UnusableStore(message)
        return _rebuilt(written, manifests), version

    def entries(self) -> list[Entry]:
        """The committed snapshots, oldest first."""
        return list(self.read_root()[0].cuts)

    def open(self, entry: Entry) -> Snapshot:
        """Opens a snapshot. Raises DamagedSnapshot if its manifest is missing or damaged."""
        try:
            data = self.store.get(entry.key)
        except Missing:
            raise DamagedSnapshot(f"the manifest of step {entry.step} is missing") from None
        except TooLarge as error:
            raise DamagedSnapshot(f"the manifest of step {entry.step} cannot be read: {error}") from None
        return Snapshot(self.store, entry, decode_manifest(data, entry))

    def garbage(self) -> list[Listed]:
        """Objects that no committed snapshot refers to, including those of a snapshot being written."""
        root, _ = self.read_root()
        return self.unreferenced(root, self.manifests(root.cuts))

    def manifests(self, entries: Iterable[Entry]) -> dict[str, Manifest]:
        """Manifests of snapshots, by key; damaged ones are logged and left out."""
        manifests = {}
        for entry in entries:
            try:
                manifests[entry.key] = self.open(entry).manifest
            except DamagedSnapshot as error:
                log.error("DAMAGED CHECKPOINT: %s", error)
        return manifests

    def unreferenced(self, root: Root, manifests: Mapping[str, Manifest]) -> list[Listed]:
        """Segments and manifests that neither the root nor one of its manifests references. None if a manifest of the
        root is not in `manifests`: which segments are that snapshot's is unknown until it can be read again."""
        used = {entry.key for entry in root.cuts}
        if not manifests.keys() >= used:
            log.warning("nothing unreferenced is deleted while the manifest of a checkpoint cannot be read")
            return []
        used |= {segment.key for manifest in manifests.values() for segment in manifest.segments()}
        return [
            listed_object
            for kind in (CUTS, SEGMENTS)
            for listed_object in self.store.list(kind)
            if listed_object.key not in used and is_named_by_content(listed_object.key)
        ]


def _rebuilt(written: Iterable[Entry], manifests: Mapping[str, Manifest]) -> Root:
    """The root of the snapshots in a listing. One without a manifest in `manifests` stays listed, so that its segments
    are not deleted: it may be read later."""
    newest = dict[int, Entry]()
    for entry in sorted(written, key=lambda e: (e.epoch, e.step)):
        # A trainer that rolled back to an earlier step has removed the snapshots after it.
        newest = {step: older for step, older in newest.items() if step < entry.step}
        manifest = manifests.get(entry.key)
        fields = {name: getattr(manifest, name) for name in ("time", "reward", "good")} if manifest else {}
        newest[entry.step] = entry.model_copy(update=fields)
    return Root(
        epoch=max(entry.epoch for entry in newest.values()),
        rollbacks=max(manifest.rollbacks for manifest in manifests.values()),
        cuts=tuple(newest[step] for step in sorted(newest)),
    )
