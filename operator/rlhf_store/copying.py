"""Copies one snapshot into another run's store, from which that run resumes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .archive import Archive, Snapshot
from .committing import Committer
from .errors import MissingSnapshot, UnusableStore
from .manifest import Segment
from .store import Store

AT_ONCE = 8
"""Segments copied concurrently, each in memory as a whole."""


def find(url: str, step: int) -> Snapshot:
    """The snapshot from which a run starts.

    Raises:
        UnusableStore: the store cannot be read.
        MissingSnapshot: it lacks the snapshot; the message lists the steps it has.
        DamagedSnapshot: it is damaged.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():  # opening would create it
        raise UnusableStore(f"there is no directory {unquote(parts.path)}")
    archive = Archive(url)
    entries = {entry.step: entry for entry in archive.entries()}
    if step in entries:
        return archive.open(entries[step])
    steps = ", ".join(map(str, sorted(entries))) or "none"
    raise MissingSnapshot(f"{url} has no checkpoint of step {step}; it has those of steps: {steps}")


def copy(snapshot: Snapshot, store: Store, committer: Committer) -> Snapshot:
    """Copies the segments, checking their hashes, and commits a snapshot of the same step and content: the start of
    this run, and so the target of its first rollback, whatever the other run's health rules said. If interrupted, the
    next trainer deletes the copied segments.

    Raises:
        DamagedSnapshot: a segment is missing or damaged.
        UnusableStore: another trainer has taken the store over.
        StoreError: a store refuses or does not respond.
    """

    def send(segment: Segment) -> None:
        store.put(segment.key, snapshot.read(segment))

    manifest = snapshot.manifest
    segments = {segment.digest: segment for segment in manifest.segments()}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="copy") as pool:
        sending = [pool.submit(send, segment) for segment in segments.values()]
        try:
            for sent in sending:
                sent.result()
        finally:
            pool.shutdown(cancel_futures=True)
    reward = snapshot.entry.reward
    return committer.commit(manifest.step, manifest.state, manifest.groups, manifest.blobs, reward)
