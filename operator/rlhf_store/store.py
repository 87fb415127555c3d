"""Object store client: one clear error if it cannot be opened, retries afterwards."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import LocalStore

from .connecting import connect, hint, refuses_twice
from .durable import make_durable
from .errors import Conflict, Missing, StoreError, TooLarge, UnusableStore
from .failures import patiently, reason
from .locked import locked

FIRST_PATIENCE = timedelta(seconds=5)
"""Deadline of retries to open a store: a mistyped name should be reported soon."""
PATIENCE = timedelta(minutes=2)
"""Deadline of retries of reads and small writes: longer than a typical outage."""
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4
READ_BYTES = 128 << 20
"""Segments have 64 MiB and up to one tensor more: those beyond this size are read in parts of it."""
JSON_BYTES = 256 << 20
"""Limit of an object of which nothing else tells the size: a manifest, or LATEST."""
ABANDONED_SECONDS = 3600.0
"""Age of a file that no writer still writes, seconds."""
T = TypeVar("T")


@dataclass(frozen=True)
class Version:
    """Content of a mutable object, and what its store compares: Google Cloud a number (`version`), all others a tag
    (`e_tag`)."""

    data: bytes
    known_by: Mapping[str, str]


@dataclass(frozen=True)
class Listed:
    """An object in a listing: size in bytes, and time of its last change."""

    key: str
    size: int
    modified: datetime
    tag: str | None = None
    """The store's tag of this version."""


@dataclass(frozen=True)
class StoreOptions:
    """Settings with which a store is opened and retried."""

    patience: timedelta = PATIENCE
    """Deadline of the retries of a request."""
    known: bool = False
    """True if the store has worked before: the first request is retried for the full `patience` too."""
    retrying: Callable[[str], None] = lambda _reason: None
    """Called before each retry, with the reason of a failure that lasts."""
    keys: Mapping[str, str] | None = None
    """Somebody else's credentials, by the variables that stores' own tools read; then errors have none of the server's
    words, which may be any server's. None: those of the environment."""


DEFAULTS = StoreOptions()


class Store:
    """Objects under one URL. All methods raise StoreError if the store refuses or does not respond."""

    def __init__(self, url: str, options: StoreOptions = DEFAULTS) -> None:
        """Opens and lists it. Raises UnusableStore if the URL does not name a store where that can be done."""
        patience, keys = options.patience, options.keys
        self.url, self.patience, self._options, self._is_brief = url, patience, options, keys is not None
        try:
            self._store = connect(url, patience, keys)
            first = self._store if options.known else connect(url, min(patience, FIRST_PATIENCE), keys)
        except (BaseError, ValueError, OSError) as error:
            raise self._unusable(error) from error
        self._first_ask(lambda: next(iter(obstore.list(first, chunk_size=1)), None))
        self._writable = False
        """True once the store has taken an object."""
        self.conditional = True
        """True if the store supports conditional writes; see `check_writable`."""

    def check_writable(self) -> None:
        """Writes and deletes a test object, so that a run that cannot be saved fails before its first step.

        Also detects whether the store supports conditional writes.

        Raises:
            UnusableStore: the store refuses the object.
        """

        def check() -> bool:
            key = f"writable-{uuid.uuid4().hex}"
            obstore.put(self._store, key, b"")
            # Not in a directory, where `create` is a hard link, which shared file systems may lack.
            conditional = self._directory is not None or (
                refuses_twice(self._store, key) and bool(self._read(key).known_by)
            )
            obstore.delete(self._store, key)
            return conditional

        self.conditional = self._first_ask(check)
        self._writable = True

    def put(self, key: str, data: bytes) -> None:
        """Writes an object; large ones are uploaded in concurrent parts."""
        self._ask(lambda: self._put(key, data))
        self._writable = True

    def put_new(self, key: str, data: bytes) -> None:
        """Creates an object. Raises Conflict if one of this name exists with other content."""

        try:
            self.swap(key, data, None)
        except Conflict:
            if self.get(key) != data:  # otherwise our own first try succeeded
                raise

    def get(self, key: str, size: int | None = None) -> bytes:
        """Reads an object of at most `size` bytes, by default JSON_BYTES; in parts, if a slow link does not bring so
        many within the timeout of a request. Raises Missing and TooLarge."""
        if size is None or size <= READ_BYTES:
            return self._ask(lambda: self._read(key, size)).data
        attributes = self.attributes(key)
        self._check_size(key, attributes.size, size)
        return b"".join(self._parts(attributes, READ_BYTES))

    def read(self, key: str) -> Version:
        """Reads an object of at most JSON_BYTES with its version. Raises Missing and TooLarge."""
        return self._ask(lambda: self._read(key))

    def swap(self, key: str, data: bytes, known: Version | None) -> Version:
        """Compare-and-swap: replaces exactly the version `known` by `data`; None: creates the object.

        A directory compares under a file lock. A store without conditional writes compares and then writes: another
        write in the milliseconds between is not detected.

        Raises:
            Conflict: the object has another version by now.
            Missing: it is gone.
        """

        def swap() -> Version:
            if self._directory is not None:
                with locked(self._directory / ".lock"):
                    return self._compare_and_put(key, data, known)
            if not self.conditional:
                return self._compare_and_put(key, data, known)
            try:
                mode: Any = "create" if known is None else known.known_by
                return _version(data, obstore.put(self._store, key, data, mode=mode))
            except (AlreadyExistsError, PreconditionError):
                stored = self._read(key)
                if stored.data != data:  # otherwise our own first try succeeded, and its reply was lost
                    raise Conflict(key) from None
                return stored

        return self._ask(swap)

    def list(self, prefix: str) -> Sequence[Listed]:
        """The objects below `prefix/`."""
        metadata = self._ask(lambda: obstore.list(self._store, prefix).collect())
        return [Listed(meta["path"], meta["size"], meta["last_modified"]) for meta in metadata]

    def folders(self) -> Sequence[str]:
        """The names of what lies one level below, as far as it holds objects."""
        reply = self._ask(lambda: obstore.list_with_delimiter(self._store))
        return sorted(reply["common_prefixes"])

    def attributes(self, key: str) -> Listed:
        """Size, time and tag of an object. Raises Missing."""

        def ask() -> Listed:
            try:
                meta = obstore.head(self._store, key)
            except (NotFoundError, FileNotFoundError) as error:
                raise Missing(key) from error
            return Listed(key, meta["size"], meta["last_modified"], meta["e_tag"])

        return self._ask(ask)

    def download(self, listed_object: Listed, file: Path) -> None:
        """Downloads an object to a file, part by part, each with a timeout of its own, so that a large one may take
        long. An object that is replaced meanwhile is refused."""

        with file.open("wb") as out:
            out.writelines(self._parts(listed_object, PART_BYTES))

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects, as far as they are there."""
        if keys:
            self._ask(lambda: self._delete(keys))

    def delete_abandoned(self, keys: Callable[[str], bool]) -> None:
        """Deletes, in a directory, what killed writers have left of objects whose keys `keys` accepts: files named
        `KEY#1`, which no listing has."""
        if (folder := self._directory) is not None:
            self._ask(lambda: _delete_abandoned(folder, keys))

    def _ask(self, call: Callable[[], T]) -> T:
        retrying = self._options.retrying
        return patiently(
            call, self.url, self.patience, retrying, allowed=self._writable, brief=self._is_brief
        )

    def _first_ask(self, call: Callable[[], T]) -> T:
        """The first request, with a short deadline: a mistyped name is reported soon, as an error of the job."""
        try:
            patience = self.patience if self._options.known else min(self.patience, FIRST_PATIENCE)
            return patiently(call, self.url, patience, self._options.retrying, brief=self._is_brief)
        except StoreError as error:
            if self._options.known or self._is_brief or error.__cause__ is None:
                raise
            raise self._unusable(error.__cause__) from error

    def _parts(self, listed_object: Listed, size: int) -> Iterator[bytes]:
        def part(start: int) -> bytes:
            end = min(start + size, listed_object.size)
            options: Any = {"range": (start, end)} | (
                {"if_match": listed_object.tag} if listed_object.tag else {}
            )
            return bytes(obstore.get(self._store, listed_object.key, options=options).bytes())

        for start in range(0, listed_object.size, size):
            yield self._ask(partial(part, start))

    def _delete(self, keys: Sequence[str]) -> None:
        """Deletes all keys in one call; one by one in a store that refuses missing objects, such as a directory."""
        try:
            obstore.delete(self._store, [*keys])
        except (NotFoundError, FileNotFoundError):
            for key in keys:
                with suppress(NotFoundError, FileNotFoundError):
                    obstore.delete(self._store, key)

    def _read(self, key: str, most: int | None = None) -> Version:
        try:
            reply = obstore.get(self._store, key)
            self._check_size(key, reply.meta["size"], JSON_BYTES if most is None else most)
            data = bytes(reply.bytes())
        except (NotFoundError, FileNotFoundError) as error:
            raise Missing(key) from error
        return _version(data, reply.meta)

    @property
    def _directory(self) -> Path | None:
        return Path(unquote(urlsplit(self.url).path)) if isinstance(self._store, LocalStore) else None

    def _compare_and_put(self, key: str, data: bytes, known: Version | None) -> Version:
        try:
            stored: Version | None = self._read(key)
        except Missing:
            if known is not None:
                raise
            stored = None
        if stored and stored.data == data:  # our own first try succeeded, and its reply was lost
            return stored
        if (stored and stored.data) != (known and known.data):
            raise Conflict(key)
        return _version(data, self._put(key, data))

    def _put(self, key: str, data: bytes) -> Mapping[str, Any]:
        reply = obstore.put(self._store, key, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        if (folder := self._directory) is not None:
            make_durable(folder / key)
        return reply

    def _unusable(self, error: BaseException) -> UnusableStore:
        if self._is_brief:
            return UnusableStore(f"cannot use {self.url} with the keys that are given")
        return UnusableStore(f"cannot use {self.url}: {reason(error)}; {hint(self.url)}")

    def _check_size(self, key: str, size: int, most: int) -> None:
        if size > most:
            raise TooLarge(f"{key} in {self.url} has {size} bytes, and may have {most}")


def _delete_abandoned(folder: Path, keys: Callable[[str], bool]) -> None:
    oldest = time.time() - ABANDONED_SECONDS
    for file in folder.rglob("*#*"):
        key, _, number = file.relative_to(folder).as_posix().rpartition("#")
        with suppress(FileNotFoundError):
            if number.isdigit() and keys(key) and file.stat().st_mtime < oldest:
                file.unlink()


def _version(data: bytes, metadata: Mapping[str, Any]) -> Version:
    """`metadata`: of the store, as it replies to a read or a write."""
    return Version(
        data, {name: metadata[name] for name in ("e_tag", "version") if metadata[name] is not None}
    )
