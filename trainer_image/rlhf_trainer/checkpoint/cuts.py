"""Checkpoints as consistent cuts: content-hashed segments first, one manifest last.

    segments/<sha256>       tensors, as safetensors
    cuts/<step>.json        the manifest of one cut: state, and the segments of each group of tensors

A cut exists once its manifest does; a crash before that leaves unreferenced segments, never half a cut.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url
from torch import Tensor

from rlhf_api.problems import InvalidJob, Problem

from ..wire import WireError, decode, encode

log = logging.getLogger(__name__)

FORMAT = 1
SEGMENT_BYTES = 256 << 20
Group = Iterable[tuple[str, Tensor]]


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
        try:
            data = bytes(obstore.get(self._store, segment.key).bytes())
        except (BaseError, FileNotFoundError) as error:
            raise DamagedCut(
                f"segment {segment.digest[:12]} of step {self.step} cannot be read: {error}"
            ) from error
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
            InvalidJob: the URL names no store that can be opened.
        """
        self.url = url
        try:
            self._store = from_url(url, mkdir=True) if url.startswith("file://") else from_url(url)
        except (BaseError, ValueError) as error:
            raise InvalidJob(
                [Problem("spec.checkpoint.store", f"{url} cannot be opened: {error}")]
            ) from error

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
        obstore.put(self._store, f"cuts/{step:08d}.json", json.dumps(manifest).encode())
        return Cut(self._store, manifest)

    def steps(self) -> list[int]:
        """The steps that have a manifest, ascending."""
        listed = obstore.list(self._store, "cuts").collect()
        names = [meta["path"].rsplit("/", 1)[-1].removesuffix(".json") for meta in listed]
        return sorted(int(name) for name in names if name.isdigit())

    def open(self, step: int) -> Cut:
        """Raises DamagedCut where the manifest cannot be read."""
        try:
            data = bytes(obstore.get(self._store, f"cuts/{step:08d}.json").bytes())
            manifest = json.loads(data)
            if manifest["format"] != FORMAT:
                raise DamagedCut(
                    f"the cut of step {step} has format {manifest['format']}; this version reads {FORMAT}"
                )
            return Cut(self._store, manifest)
        except (BaseError, FileNotFoundError, ValueError, KeyError, TypeError) as error:
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
        steps = self.steps()
        for step in steps[:-last]:
            obstore.delete(self._store, f"cuts/{step:08d}.json")
        kept = {segment.key for step in steps[-last:] for segment in self.open(step).segments()}
        listed = [meta["path"] for meta in obstore.list(self._store, "segments").collect()]
        garbage = [path for path in listed if path not in kept]
        if garbage:
            obstore.delete(self._store, garbage)

    def clear(self) -> None:
        """Deletes every cut: a run that starts anew in this place."""
        for step in self.steps():
            obstore.delete(self._store, f"cuts/{step:08d}.json")

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
        obstore.put(self._store, segment.key, data)
        return segment
