"""Format of a store: content-addressed objects, named by their sha256, and one small root, LATEST.

    segments/<sha256>                       tensors (safetensors), or a blob, such as an episode (Parquet), or a part
    cuts/<step>.<epoch>.<sha256>.json       the manifest of one snapshot: its state, and which segments it is made of
    LATEST                                  the root: committed snapshots, and the fencing epoch of who may add to them

A snapshot exists once LATEST lists it. A crash before that leaves unreferenced objects, never a partial snapshot.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, JsonValue, ValidationError

from rlhf_api.field_types import Frozen, Report

from .errors import DamagedSnapshot, UnusableStore

ROOT = "LATEST"
SEGMENTS = "segments"
CUTS = "cuts"
FORMAT: Literal[2] = 2
PART_BYTES = 4 << 20
_PART = "#"

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
_CUT = re.compile(rf"^{CUTS}/([0-9]{{8,}})\.([0-9]+)\.([0-9a-f]{{64}})\.json$")
_SEGMENT = re.compile(rf"^{SEGMENTS}/[0-9a-f]{{64}}$")
T = TypeVar("T", bound=Frozen)


class Segment(Report):
    """An immutable object; `names`: its tensors."""

    digest: Digest
    size: Count
    names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{SEGMENTS}/{self.digest}"


class Manifest(Report):
    """One snapshot. `epoch`: fencing epoch of the trainer that wrote it."""

    format: Literal[2] = FORMAT
    step: Count
    epoch: Count
    time: str
    state: dict[str, JsonValue]
    groups: dict[str, tuple[Segment, ...]]
    blobs: dict[str, Segment]
    """A blob NAME in parts has the further ones as `NAME#1`, `NAME#2` and so on; see `part_names`."""
    reward: float | None = None
    """Mean of the evaluation at its step, if there was one."""
    good: bool = True
    """True if no health rule was broken at the snapshot's step, so that it may be the target of a rollback."""
    rollbacks: Count = 0
    """Number of rollbacks of its run before it."""

    def segments(self) -> Iterator[Segment]:
        for segments in self.groups.values():
            yield from segments
        yield from self.blobs.values()


class Entry(Report):
    """A committed snapshot in the root."""

    step: Count
    epoch: Count
    digest: Digest
    time: str
    reward: float | None = None
    good: bool = True
    """Evaluation and health of the run at this snapshot, as in its manifest."""

    @property
    def key(self) -> str:
        return f"{CUTS}/{self.step:08d}.{self.epoch}.{self.digest}.json"

    @classmethod
    def of_key(cls, key: str) -> "Entry | None":
        """Parses the name of a manifest; None for any other object."""
        match = _CUT.match(key)
        return match and cls(step=int(match[1]), epoch=int(match[2]), digest=match[3], time="")


class Root(Report):
    """The content of LATEST: committed snapshots by ascending step; a writer with a higher epoch fences the others."""

    format: Literal[2] = FORMAT
    epoch: Count = 0
    owner: str = ""
    """Random name of the trainer with this epoch, so that no two trainers ever write the same root."""
    run: str = ""
    """Identity of that trainer's run, where its host gives one."""
    rollbacks: Count = 0
    """Number of rollbacks to a good snapshot."""
    cuts: tuple[Entry, ...] = ()


def part_names(name: str) -> Iterator[str]:
    """The names of a blob's parts, without end."""
    yield name
    for number in count(1):
        yield f"{name}{_PART}{number}"


def is_whole(name: str) -> bool:
    """False for the name of a blob's further part."""
    return _PART not in name


def split_lines(data: bytes) -> Iterator[bytes]:
    """Parts of whole lines, of at most PART_BYTES each unless a line is longer: if lines are appended to the data, all
    parts but the last stay the same, and are not stored again."""
    begin = 0
    while len(data) - begin > PART_BYTES:
        end = data.rfind(b"\n", begin, begin + PART_BYTES) + 1 or data.find(b"\n", begin + PART_BYTES) + 1
        if not end:
            break
        yield data[begin:end]
        begin = end
    if begin < len(data) or not begin:
        yield data[begin:]


def is_named_by_content(key: str) -> bool:
    """True for the name of a segment or a manifest: another object below `segments/` or `cuts/` is somebody else's."""
    return bool(_SEGMENT.match(key) or _CUT.match(key))


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode_manifest(manifest: Manifest) -> bytes:
    return manifest.model_dump_json(by_alias=True).encode()


def decode_manifest(data: bytes, entry: Entry) -> Manifest:
    """Parses a manifest and checks its hash. Raises DamagedSnapshot."""
    where = f"the manifest of step {entry.step}"
    if digest_of(data) != entry.digest:
        raise DamagedSnapshot(f"{where} is not what its hash says")
    return _parse(Manifest, data, where)


def encode_root(root: Root) -> bytes:
    return json.dumps(_signed(root.model_dump(mode="json", by_alias=True))).encode()


def decode_root(data: bytes) -> Root:
    """Parses LATEST and checks its hash. Raises DamagedSnapshot, and UnusableStore for one of another format."""
    try:
        content = json.loads(data)
        if content != _signed(content):
            raise DamagedSnapshot(f"{ROOT} is not what its hash says")
        written = content.get("format")
        del content["sha256"]
        text = json.dumps(content).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedSnapshot(f"{ROOT} cannot be read: {error!r:.200}") from error
    if written != FORMAT:
        message = f"its {ROOT} has format {written!r:.9}, and this release reads format {FORMAT}"
        raise UnusableStore(f"{message}; go on with the release that wrote it, or name another store")
    return _parse(Root, text, ROOT)


def _parse(model: type[T], data: bytes, where: str) -> T:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(map(str, first["loc"])) or "its content"
        raise DamagedSnapshot(f"{where} cannot be read: {at}: {first['msg']}") from None


def _signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with the sha256 of all other fields."""
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return {**rest, "sha256": digest_of(json.dumps(rest, sort_keys=True).encode())}
