"""Copies one snapshot into another run's store, from which that run resumes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.checkpoint import Origin

from .archive import Archive, Snapshot
from .committing import Committer
from .manifest import DamagedSnapshot, Segment
from .store import Store

AT_ONCE = 8
"""Segments copied concurrently, each in memory as a whole."""
_WHERE = "spec.checkpoint.startFrom"


def find(origin: Origin) -> Snapshot:
    """The snapshot from which a run starts.

    Raises:
        InvalidJob: the store cannot be read, or lacks the snapshot; the message lists the steps it has.
    """
    url = urlsplit(origin.store)
    if url.scheme == "file" and not Path(unquote(url.path)).is_dir():  # opening would create it
        raise InvalidJob([Problem(f"{_WHERE}.store", f"there is no directory {unquote(url.path)}")])
    try:
        archive = Archive(origin.store)
        entries = {entry.step: entry for entry in archive.entries()}
        if origin.step in entries:
            return archive.open(entries[origin.step])
    except InvalidJob as error:
        raise InvalidJob(
            [Problem(f"{_WHERE}.store", problem.message) for problem in error.problems]
        ) from None
    except DamagedSnapshot as error:
        raise InvalidJob([Problem(_WHERE, f"{origin.store}: {error}; take another step")]) from None
    steps = ", ".join(map(str, sorted(entries))) or "none"
    message = f"{origin.store} has no checkpoint of step {origin.step}; it has those of steps: {steps}"
    raise InvalidJob([Problem(f"{_WHERE}.step", message)])


def copy(snapshot: Snapshot, store: Store, committer: Committer) -> Snapshot:
    """Copies the segments, checking their hashes, and commits a snapshot of the same step and content: the start of
    this run, and so the target of its first rollback, whatever the other run's health rules said. If interrupted, the
    next trainer deletes the copied segments.

    Raises:
        InvalidJob: a segment is missing or damaged, or another trainer has taken the store over.
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
        except DamagedSnapshot as error:
            raise InvalidJob([Problem(_WHERE, f"{error}; take another step")]) from None
        finally:
            pool.shutdown(cancel_futures=True)
    reward = snapshot.entry.reward
    return committer.commit(manifest.step, manifest.state, manifest.groups, manifest.blobs, reward)
