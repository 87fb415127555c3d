"""Connects to an object store by its URL, and finds out what it can do."""

import os
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import ObjectStore, from_url

from .credentials import FileCredentials

REQUEST_TIMEOUT = timedelta(minutes=2)
"""Timeout of one request: the download of a segment, or of a part of a large one, or the upload of a part."""
RETRY_TIMEOUT = timedelta(seconds=10)
HINTS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_SHARED_CREDENTIALS_FILE; for another "
    "server than AWS also AWS_ENDPOINT_URL, and AWS_ALLOW_HTTP=true where that is http://",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "file": "its directory must be writable",
}


def connect(url: str, patience: timedelta) -> ObjectStore:
    """The client of a store's URL, with credentials from the environment; `patience`: longest time of a request and of
    its own retries. Raises obstore's errors, ValueError and OSError."""
    if url.startswith("file://"):
        return from_url(url, mkdir=True)
    # Options given here override the environment.
    allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true"
    options: Any = {
        "retry_config": {
            # Parts of a large object are retried one by one, everything else as a whole, by `patiently`.
            "retry_timeout": min(patience, RETRY_TIMEOUT),
            "max_retries": 10,
        },
        "client_options": {"timeout": min(patience, REQUEST_TIMEOUT), "allow_http": allow_http},
    }
    if (credentials := FileCredentials.of(url, os.environ)) is not None:
        options["credential_provider"] = credentials
    store: ObjectStore = from_url(url, **options)
    return store


def hint(url: str) -> str:
    """Advice on the credentials and settings that a store of this kind needs."""
    return HINTS.get(url.partition(":")[0], "")


def refuses_twice(store: ObjectStore, key: str) -> bool:
    """True if the store refuses to create an existing object, and to replace a version that does not exist. False also
    for a server that implements neither."""
    modes: list[Any] = ["create", {"e_tag": '"another"', "version": "1"}]
    for mode in modes:
        try:
            obstore.put(store, key, b"", mode=mode)
            return False
        except (AlreadyExistsError, PreconditionError):
            continue
        except GenericError as error:
            if "501 Not Implemented" in str(error):
                return False
            raise
    return True
