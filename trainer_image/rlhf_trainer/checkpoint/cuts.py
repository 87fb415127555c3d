"""Checkpoints as consistent cuts: content-hashed segments first, one manifest last.

    segments/<sha256>       tensors, as safetensors
    cuts/<step>.json        the manifest of one cut: state, the segments of each group of tensors, its own hash

A cut exists once its manifest does; a crash before that leaves unreferenced segments, never half a cut.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore, from_url
from torch import Tensor

from rlhf_api.problems import InvalidJob, Problem

from ..wire import WireError, decode, encode

log = logging.getLogger(__name__)

FORMAT = 1
SEGMENT_BYTES = 256 << 20
FIRST_PATIENCE = timedelta(seconds=5)
"""How long opening a store may be retried: who mistyped its name wants to know at once."""
PATIENCE = timedelta(minutes=2)
"""How long anything later may be retried: longer than a store's hiccup."""
REQUEST_TIMEOUT = timedelta(minutes=2)
"""For one request, a whole segment down included."""
HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION; for another server than AWS also "
    "AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true where that is http://",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "file": "its directory must be writable",
}
Group = Iterable[tuple[str, Tensor]]


class StoreError(RuntimeError):
    """The object store refuses, or does not answer for longer than PATIENCE."""


class DamagedCut(RuntimeError):
    """A manifest or segment that is missing or is not what its hash says."""


@dataclass(frozen=True)
class Segment:
    """An immutable object: its content's sha256 is its name."""

    digest: str
    size: int
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"segments/{self.digest}"


class Cut:
    """One cut as its manifest describes it; tensors are read, and their hashes checked, on demand."""

    def __init__(self, store: ObjectStore, manifest: Mapping[str, Any]) -> None:
        self._store = store
        self.step: int = manifest["step"]
        self.time: str = manifest["time"]
        self.state: Mapping[str, Any] = manifest["state"]
        self.groups = {
            group: [Segment(s["digest"], s["size"], tuple(s["names"])) for s in segments]
            for group, segments in manifest["groups"].items()
        }
        self._read = lru_cache(maxsize=2)(self._read_segment)

    def segments(self) -> Iterator[Segment]:
        for segments in self.groups.values():
            yield from segments

    def tensor(self, group: str, name: str) -> Tensor:
        """Raises DamagedCut where it is not there or not intact."""
        for segment in self.groups.get(group, ()):
            if name in segment.names:
                return self._read(segment)[name]
        raise DamagedCut(f"the cut of step {self.step} has no tensor {name!r} in {group!r}")

    def tensors(self, group: str) -> dict[str, Tensor]:
        """All tensors of a small group."""
        return {name: self.tensor(group, name) for s in self.groups.get(group, ()) for name in s.names}

    def verify(self) -> None:
        """Reads every segment. Raises DamagedCut."""
        for segment in self.segments():
            self._read_segment(segment)

    def _read_segment(self, segment: Segment) -> dict[str, Tensor]:
        data = _get(self._store, segment.key)
        if hashlib.sha256(data).hexdigest() != segment.digest:
            raise DamagedCut(f"segment {segment.digest[:12]} of step {self.step} is not what its hash says")
        try:
            return decode(data)[0]
        except WireError as error:
            raise DamagedCut(f"segment {segment.digest[:12]} of step {self.step}: {error}") from error


class Cuts:
    """The cuts of one run in an object store."""

    def __init__(self, url: str) -> None:
        """Credentials come from the environment, as each store's own tools read them.

        Raises:
            InvalidJob: the URL names no store that can be opened and listed.
        """
        self.url = url
        try:
            obstore.list(_connect(url, FIRST_PATIENCE), "cuts").collect()
            self._store = _connect(url, PATIENCE)
        except (BaseError, ValueError, OSError) as error:
            raise self._unusable(error) from error

    def check_writable(self) -> None:
        """Writes something and deletes it again, so that a run learns before its first step that it cannot be saved.

        Raises:
            InvalidJob: the store does not take it.
        """
        try:
            store = _connect(self.url, FIRST_PATIENCE)
            obstore.put(store, "cuts/writable", b"")
            obstore.delete(store, "cuts/writable")
        except (BaseError, OSError) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> InvalidJob:
        hint = HINTS.get(self.url.partition(":")[0], "")
        return InvalidJob(
            [Problem("spec.checkpoint.store", f"cannot use {self.url}: {_reason(error)}; {hint}")]
        )

    def write(self, step: int, state: Mapping[str, Any], groups: Mapping[str, Group]) -> Cut:
        """Makes the cut of a step; the tensors of each group are consumed one at a time."""
        written = {group: list(self._write_segments(tensors)) for group, tensors in groups.items()}
        manifest = {
            "format": FORMAT,
            "step": step,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "state": state,
            "groups": {
                group: [{"digest": s.digest, "size": s.size, "names": s.names} for s in segments]
                for group, segments in written.items()
            },
        }
        with _talking():
            obstore.put(self._store, _key(step), json.dumps(_signed(manifest)).encode())
        return Cut(self._store, manifest)

    def steps(self) -> list[int]:
        """The steps that have a manifest, ascending."""
        names = [path.rsplit("/", 1)[-1].removesuffix(".json") for path in self._listed("cuts")]
        return sorted(int(name) for name in names if name.isdigit())

    def open(self, step: int) -> Cut:
        """Raises DamagedCut where the manifest is not there or not intact."""
        data = _get(self._store, _key(step))
        try:
            manifest = json.loads(data)
            if manifest != _signed(manifest):
                raise DamagedCut(f"the manifest of step {step} is not what its hash says")
            if manifest["format"] != FORMAT:
                raise DamagedCut(
                    f"the cut of step {step} has format {manifest['format']}; this version reads {FORMAT}"
                )
            return Cut(self._store, manifest)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedCut(f"the manifest of step {step} cannot be read: {error!r}") from error

    def newest(self) -> Cut | None:
        """The newest cut that is whole; a damaged one is passed over with a loud log line."""
        for step in reversed(self.steps()):
            try:
                cut = self.open(step)
                cut.verify()
            except DamagedCut as error:
                log.error("DAMAGED CHECKPOINT, falling back to the one before: %s", error)
                continue
            return cut
        return None

    def retain(self, last: int) -> None:
        """Deletes all but the `last` newest cuts, then every segment that none of those refers to."""
        kept: dict[int, Cut] = {}
        steps = self.steps()
        for step in reversed(steps):
            if len(kept) < last:
                try:
                    kept[step] = self.open(step)
                except DamagedCut as error:
                    log.error("DAMAGED CHECKPOINT, deleted: %s", error)
        self._delete([_key(step) for step in steps if step not in kept])
        used = {segment.key for cut in kept.values() for segment in cut.segments()}
        self._delete([path for path in self._listed("segments") if path not in used])

    def clear(self) -> None:
        """Deletes every cut: a run that starts anew in this place."""
        self._delete([_key(step) for step in self.steps()])

    def _listed(self, prefix: str) -> list[str]:
        with _talking():
            return [meta["path"] for meta in obstore.list(self._store, prefix).collect()]

    def _delete(self, keys: list[str]) -> None:
        if keys:
            with _talking():
                obstore.delete(self._store, keys)

    def _write_segments(self, tensors: Group) -> Iterator[Segment]:
        batch: dict[str, Tensor] = {}
        size = 0
        for name, tensor in tensors:
            batch[name] = tensor.detach().cpu().clone()
            size += batch[name].nbytes
            if size >= SEGMENT_BYTES:
                yield self._put(batch)
                batch, size = {}, 0
        if batch:
            yield self._put(batch)

    def _put(self, batch: Mapping[str, Tensor]) -> Segment:
        data = encode(batch)
        segment = Segment(hashlib.sha256(data).hexdigest(), len(data), tuple(batch))
        with _talking():
            obstore.put(self._store, segment.key, data)
        return segment


def _key(step: int) -> str:
    return f"cuts/{step:08d}.json"


def _signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with the sha256 of all its other fields."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return {**rest, "sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def _connect(url: str, patience: timedelta) -> ObjectStore:
    if url.startswith("file://"):
        return from_url(url, mkdir=True)
    return from_url(
        url,
        retry_config={"retry_timeout": patience},
        # Options given here hide those of the environment.
        client_options={
            "timeout": REQUEST_TIMEOUT,
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true",
        },
    )


def _get(store: ObjectStore, key: str) -> bytes:
    """Raises DamagedCut where it is not there, StoreError where nobody can tell."""
    with _talking():
        try:
            return bytes(obstore.get(store, key).bytes())
        except (NotFoundError, FileNotFoundError) as error:
            raise DamagedCut(f"{key} is missing") from error


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise StoreError(f"the checkpoint store fails: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The store's message on one line: an XML answer's own words, without the library's timings and debugging."""
    text = str(error).partition("\n\nDebug source")[0]
    head, _, answer = text.partition("<?xml")
    head = re.sub(r"^Generic \w+ error: (Error performing \w+ request: )?| in [\d.]+.?s\b", "", head)
    said = re.search(r"<Message>(.*?)\.?</Message>", answer)
    return " ".join(f"{head}{said.group(1) if said else answer}".split())[:500]
