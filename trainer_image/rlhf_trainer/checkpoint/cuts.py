"""Checkpoints as consistent cuts: content-hashed segments first, one manifest last.

    segments/<sha256>       tensors, as safetensors
    cuts/<step>.json        the manifest of one cut: state, the segments of each group of tensors, its own hash

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

from torch import Tensor

from rlhf_api.problems import InvalidJob, Problem

from ..wire import WireError, decode, encode
from .store import Missing, Store

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

    def __init__(self, store: Store, manifest: Mapping[str, Any]) -> None:
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
            data = self._store.get(segment.key)
        except Missing:
            raise DamagedCut(f"segment {segment.digest[:12]} of step {self.step} is missing") from None
        if hashlib.sha256(data).hexdigest() != segment.digest:
            raise DamagedCut(f"segment {segment.digest[:12]} of step {self.step} is not what its hash says")
        try:
            return decode(data)[0]
        except WireError as error:
            raise DamagedCut(f"segment {segment.digest[:12]} of step {self.step}: {error}") from error


class Cuts:
    """The cuts of one run in an object store."""

    def __init__(self, url: str) -> None:
        """Raises InvalidJob where the URL names no store that can be opened; see `Store`."""
        self.url = url
        self._store = Store(url)

    def check_writable(self) -> None:
        """Raises InvalidJob where nothing can be written."""
        self._store.check_writable()

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
        self._store.put(_key(step), json.dumps(_signed(manifest)).encode())
        return Cut(self._store, manifest)

    def steps(self) -> list[int]:
        """The steps that have a manifest, ascending."""
        names = [key.rsplit("/", 1)[-1].removesuffix(".json") for key in self._store.list("cuts")]
        return sorted(int(name) for name in names if name.isdigit())

    def open(self, step: int) -> Cut:
        """Raises DamagedCut where the manifest is not there or not intact."""
        try:
            manifest = json.loads(self._store.get(_key(step)))
            if manifest != _signed(manifest):
                raise DamagedCut(f"the manifest of step {step} is not what its hash says")
            if manifest["format"] != FORMAT:
                raise DamagedCut(
                    f"the cut of step {step} has format {manifest['format']}; this version reads {FORMAT}"
                )
            return Cut(self._store, manifest)
        except Missing:
            raise DamagedCut(f"the manifest of step {step} is missing") from None
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
        self._store.delete([_key(step) for step in steps if step not in kept])
        used = {segment.key for cut in kept.values() for segment in cut.segments()}
        self._store.delete([key for key in self._store.list("segments") if key not in used])

    def check_unused(self) -> None:
        """Raises InvalidJob where an earlier run has cuts here: one that starts anew would mix with it."""
        if steps := self.steps():
            message = (
                f"{self.url} holds the checkpoints of an earlier run, up to step {steps[-1]}; "
                "go on from them with --resume or `spec.checkpoint.resume: true`, or name another place"
            )
            raise InvalidJob([Problem("spec.checkpoint.store", message)])

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
        self._store.put(segment.key, data)
        return segment


def _key(step: int) -> str:
    return f"cuts/{step:08d}.json"


def _signed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with the sha256 of all its other fields."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return {**rest, "sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}
