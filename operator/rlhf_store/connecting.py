"""Connects to an object store by its URL, and finds out what it can do."""

import configparser
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError
from obstore.store import ObjectStore, from_url

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

log = logging.getLogger(__name__)


def connect(url: str, patience: timedelta, keys: Mapping[str, str] | None = None) -> ObjectStore:
    """The client of a store's URL, with `keys` by the names of their variables, or those of the environment;
    `patience`: longest time of a request and of its own retries. Raises obstore's errors, ValueError and OSError."""
    if url.startswith("file://"):
        return from_url(url, mkdir=True)
    # Options given here override the environment.
    given = os.environ if keys is None else keys
    allow_http = given.get("AWS_ALLOW_HTTP", "").lower() == "true"
    options: Any = {
        "retry_config": {
            # Parts of a large object are retried one by one, everything else as a whole, by `patiently`.
            "retry_timeout": min(patience, RETRY_TIMEOUT),
            "max_retries": 10,
        },
        "client_options": {"timeout": min(patience, REQUEST_TIMEOUT), "allow_http": allow_http},
    }
    if keys is not None:
        options["config"] = {name.lower(): value for name, value in keys.items() if name != "AWS_ALLOW_HTTP"}
    elif (credentials := FileCredentials.of(url, os.environ)) is not None:
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


class FileCredentials:
    """The keys of a profile in a file that somebody else may write anew while a run goes on, as temporary keys are
    rotated: called by the client before its requests."""

    def __init__(self, file: str, profile: str) -> None:
        """Raises ValueError if the file cannot be read or has no such profile."""
        self._file, self._profile = file, profile
        self._keys = _read(file, profile)

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str]) -> "FileCredentials | None":
        """Keys of AWS_PROFILE in AWS_SHARED_CREDENTIALS_FILE, for S3; None for other stores, or if the environment has
        keys."""
        file = environ.get("AWS_SHARED_CREDENTIALS_FILE")
        if not url.startswith("s3://") or file is None or "AWS_ACCESS_KEY_ID" in environ:
            return None
        return cls(file, environ.get("AWS_PROFILE", "default"))

    def __call__(self) -> dict[str, Any]:
        try:
            self._keys = _read(self._file, self._profile)
        except ValueError as error:  # such as one that is half written: the keys before may still be valid
            log.warning("the keys cannot be read again, the previous ones stay in use: %s", error)
        return self._keys | {"expires_at": datetime.now(UTC)}  # asked for again by the next request


def _read(file: str, profile: str) -> dict[str, Any]:
    profiles = configparser.ConfigParser(interpolation=None)
    try:
        read = profiles.read(file)
        section = profiles[profile]
        keys = {key: section[f"aws_{key}"] for key in ("access_key_id", "secret_access_key")}
    except configparser.Error as error:
        raise ValueError(f"AWS_SHARED_CREDENTIALS_FILE {file}: {error.message.splitlines()[0]}") from None
    except KeyError as error:
        missing = f"has no {error.args[0]!r}" if read else "cannot be read"
        raise ValueError(f"AWS_SHARED_CREDENTIALS_FILE {file} {missing} (profile {profile!r})") from None
    return keys | {"token": section.get("aws_session_token") or None}
