"""An object store: opened with one clear message where that fails, and patient with it afterwards."""

import hashlib
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import LocalStore, ObjectStore, from_url

from rlhf_api.problems import InvalidJob, Problem

from .credentials import credentials
from .failures import Conflict, Missing, StoreError, patiently, reason
from .locked import locked

FIRST_PATIENCE = timedelta(seconds=5)
"""Deadline of retries to open a store: who mistyped its name wants to know at once."""
PATIENCE = timedelta(minutes=2)
"""Deadline of retries to read and of small writes: longer than a store's hiccup."""
REQUEST_TIMEOUT = timedelta(minutes=2)
"""For one request: a whole segment down, or a part of one up."""
RETRY_TIMEOUT = timedelta(seconds=10)
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 4
HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_SHARED_CREDENTIALS_FILE; for another "
    "server than AWS also AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true where that is http://",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "file": "its directory must be writable",
}
T = TypeVar("T")


@dataclass(frozen=True)
class Version:
    """The content of an object that others may replace, and what its store calls this version of it."""

    data: bytes
    tag: str


@dataclass(frozen=True)
class Listed:
    """An object as a listing tells of it: size in bytes, and when it was written."""

    key: str
    size: int
    modified: datetime
    tag: str | None = None
    """The store's name for this version of it."""


class Store:
    """Objects under one URL. All methods raise StoreError where the store refuses or does not answer."""

    def __init__(self, url: str, *, patience: timedelta = PATIENCE, known: bool = False) -> None:
        """Credentials come from the environment, as each store's own tools read them.

        `known`: it has served before, so it is worth waiting for from the first call on.

        Raises:
            InvalidJob: the URL names no store that can be opened and listed.
        """
        self.url, self.patience, self._known = url, patience, known
        try:
            self._store = _connect(url, patience)
            first = self._store if known else _connect(url, FIRST_PATIENCE)
        except (BaseError, ValueError, OSError) as error:
            raise self._unusable(error) from error
        self._first_ask(lambda: next(iter(obstore.list(first, chunk_size=1)), None))
        self.conditional = True
        """True where the store itself compares before it replaces an object; see `check_writable`."""

    def check_writable(self) -> None:
        """Writes something and deletes it again: a run learns before its first step that it cannot be saved.

        Finds out too whether the store has conditional writes.

        Raises:
            InvalidJob: the store does not take it.
        """

        def check() -> bool:
            key = f"writable-{uuid.uuid4().hex}"
            obstore.put(self._store, key, b"", mode="create")
            conditional = _refuses_twice(self._store, key)
            obstore.delete(self._store, key)
            return conditional

        self.conditional = self._first_ask(check)

    def put(self, key: str, data: bytes) -> None:
        """Large objects go up in parts, side by side."""
        self._ask(
            lambda: obstore.put(self._store, key, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        )

    def put_new(self, key: str, data: bytes) -> None:
        """Raises Conflict where there is an object of this name, with other content."""

        def put() -> None:
            try:
                obstore.put(self._store, key, data, mode="create" if self.conditional else "overwrite")
            except AlreadyExistsError:
                if self._read(key).data != data:  # else it was our own first try
                    raise Conflict(key) from None

        self._ask(put)

    def get(self, key: str) -> bytes:
        """Raises Missing."""
        return self.read(key).data

    def read(self, key: str) -> Version:
        """Raises Missing."""
        return self._ask(lambda: self._read(key))

    def swap(self, key: str, data: bytes, known: Version | None) -> Version:
        """Puts `data` in place of exactly the version that is known; None: where there is nothing yet.

        A directory compares under a lock, for all processes that see it. A store without conditional writes compares
        and then writes: whoever replaces it in the milliseconds between is not noticed.

        Raises:
            Conflict: something else is there by now.
        """

        def swap() -> Version:
            if self._directory is not None:
                with locked(self._directory / ".lock"):
                    return self._compare_and_put(key, data, known)
            if not self.conditional:
                return self._compare_and_put(key, data, known)
            try:
                mode: Any = "create" if known is None else {"e_tag": known.tag}
                return _version(data, obstore.put(self._store, key, data, mode=mode)["e_tag"])
            except (AlreadyExistsError, PreconditionError):
                found = self._read(key)
                if found.data != data:  # else it was our own first try, whose answer was lost
                    raise Conflict(key) from None
                return found

        return self._ask(swap)

    def list(self, prefix: str) -> Sequence[Listed]:
        """The objects below `prefix/`."""
        found = self._ask(lambda: obstore.list(self._store, prefix).collect())
        return [Listed(meta["path"], meta["size"], meta["last_modified"]) for meta in found]

    def attributes(self, key: str) -> Listed:
        """Raises Missing."""

        def ask() -> Listed:
            try:
                meta = obstore.head(self._store, key)
            except (NotFoundError, FileNotFoundError) as error:
                raise Missing(key) from error
            return Listed(key, meta["size"], meta["last_modified"], meta["e_tag"])

        return self._ask(ask)

    def download(self, found: Listed, file: Path) -> None:
        """Writes an object to a file, a part at a time: each is waited for anew, so that a large one may take long.
        An object that is replaced meanwhile is refused."""

        def part(start: int) -> bytes:
            end = min(start + PART_BYTES, found.size)
            options: Any = {"range": (start, end)} | ({"if_match": found.tag} if found.tag else {})
            return bytes(obstore.get(self._store, found.key, options=options).bytes())

        with file.open("wb") as out:
            for start in range(0, found.size, PART_BYTES):
                out.write(self._ask(partial(part, start)))

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._ask(lambda: obstore.delete(self._store, list(keys)))

    def _ask(self, call: Callable[[], T]) -> T:
        return patiently(call, self.patience)

    def _first_ask(self, call: Callable[[], T]) -> T:
        """A short deadline: who mistyped a name wants to know at once, and that it is the job which is wrong."""
        try:
            return patiently(call, self.patience if self._known else FIRST_PATIENCE)
        except StoreError as error:
            if self._known or error.__cause__ is None:
                raise
            raise self._unusable(error.__cause__) from error

    def _read(self, key: str) -> Version:
        try:
            found = obstore.get(self._store, key)
            data = bytes(found.bytes())
        except (NotFoundError, FileNotFoundError) as error:
            raise Missing(key) from error
        return _version(data, found.meta["e_tag"])

    @property
    def _directory(self) -> Path | None:
        return Path(unquote(urlsplit(self.url).path)) if isinstance(self._store, LocalStore) else None

    def _compare_and_put(self, key: str, data: bytes, known: Version | None) -> Version:
        try:
            found: Version | None = self._read(key)
        except Missing:
            found = None
        if (found and found.data) != (known and known.data):
            raise Conflict(key)
        return _version(data, obstore.put(self._store, key, data)["e_tag"])

    def _unusable(self, error: BaseException) -> InvalidJob:
        hint = HINTS.get(self.url.partition(":")[0], "")
        message = f"cannot use {self.url}: {reason(error)}; {hint}"
        return InvalidJob([Problem("spec.checkpoint.store", message)])


def _version(data: bytes, tag: str | None) -> Version:
    return Version(data, tag or hashlib.sha256(data).hexdigest())


def _refuses_twice(store: ObjectStore, key: str) -> bool:
    """True where it refuses to make an object again, and to replace a version that is not there."""
    try:
        obstore.put(store, key, b"", mode="create")
        return False
    except AlreadyExistsError:
        pass
    if isinstance(store, LocalStore):
        return True
    try:
        obstore.put(store, key, b"", mode={"e_tag": '"another"'})
        return False
    except PreconditionError:
        return True


def _connect(url: str, patience: timedelta) -> ObjectStore:
    if url.startswith("file://"):
        return from_url(url, mkdir=True)
    # Options given here hide those of the environment.
    allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"
    options: Any = {
        "config": credentials(url, os.environ),
        "retry_config": {
            # Parts of a large object are tried again one by one, all else whole, by `patiently`.
            "retry_timeout": min(patience, RETRY_TIMEOUT),
            "max_retries": 10,
        },
        "client_options": {"timeout": min(patience, REQUEST_TIMEOUT), "allow_http": allow_http},
    }
    store: ObjectStore = from_url(url, **options)
    return store
