"""An object store: opened with one clear message where that fails, and patient with it afterwards."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import ObjectStore, from_url

from rlhf_api.problems import InvalidJob, Problem

FIRST_PATIENCE = timedelta(seconds=5)
"""How long opening a store is retried: who mistyped its name wants to know at once."""
PATIENCE = timedelta(minutes=2)
"""How long anything later is retried: longer than a store's hiccup."""
REQUEST_TIMEOUT = timedelta(minutes=2)
"""For one request, a whole segment down included."""
HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION; for another server than AWS also "
    "AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true where that is http://",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "file": "its directory must be writable",
}


class StoreError(RuntimeError):
    """The store refuses, or does not answer for longer than PATIENCE."""


class Missing(LookupError):
    """There is no object under this key."""


class Store:
    """Objects under one URL. All methods raise StoreError."""

    def __init__(self, url: str) -> None:
        """Credentials come from the environment, as each store's own tools read them.

        Raises:
            InvalidJob: the URL names no store that can be opened and listed.
        """
        self._url = url
        try:
            obstore.list(_connect(url, FIRST_PATIENCE)).collect()
            self._store = _connect(url, PATIENCE)
        except (BaseError, ValueError, OSError) as error:
            raise self._unusable(error) from error

    def check_writable(self) -> None:
        """Writes something and deletes it again: a run learns before its first step that it cannot be saved.

        Raises:
            InvalidJob: the store does not take it.
        """
        try:
            store = _connect(self._url, FIRST_PATIENCE)
            obstore.put(store, "writable", b"")
            obstore.delete(store, "writable")
        except (BaseError, OSError) as error:
            raise self._unusable(error) from error

    def put(self, key: str, data: bytes) -> None:
        with _talking():
            obstore.put(self._store, key, data)

    def get(self, key: str) -> bytes:
        """Raises Missing."""
        with _talking():
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except (NotFoundError, FileNotFoundError) as error:
                raise Missing(key) from error

    def list(self, prefix: str) -> Sequence[str]:
        """The keys below `prefix/`."""
        with _talking():
            return [meta["path"] for meta in obstore.list(self._store, prefix).collect()]

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            with _talking():
                obstore.delete(self._store, list(keys))

    def _unusable(self, error: Exception) -> InvalidJob:
        hint = HINTS.get(self._url.partition(":")[0], "")
        message = f"cannot use {self._url}: {_reason(error)}; {hint}"
        return InvalidJob([Problem("spec.checkpoint.store", message)])


def _connect(url: str, patience: timedelta) -> ObjectStore:
    if url.startswith("file://"):
        return from_url(url, mkdir=True)
    # Options given here hide those of the environment.
    allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"
    return from_url(
        url,
        retry_config={"retry_timeout": patience},
        client_options={"timeout": REQUEST_TIMEOUT, "allow_http": allow_http},
    )


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
    noise = r"^Generic \w+ error: (Error performing \w+ request: )?| in [\d.]+.?s\b(, after .*retry_timeout: \w+)?"
    head = re.sub(noise, "", head)
    said = re.search(r"<Message>(.*?)\.?</Message>", answer)
    return " ".join(f"{head}{said.group(1) if said else answer}".split())[:500]
