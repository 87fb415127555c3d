"""Reads credentials from files that the object store client itself does not read."""

import configparser
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger(__name__)


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
