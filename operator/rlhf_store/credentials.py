"""Reads credentials from files that the object store client itself does not read."""

import configparser
from collections.abc import Mapping
from typing import Any


def credentials(url: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Client options with credentials: for S3, the keys of AWS_PROFILE in AWS_SHARED_CREDENTIALS_FILE, unless the
    environment has keys.

    Raises:
        ValueError: the file is named, but cannot be read or has no such profile.
    """
    file = environ.get("AWS_SHARED_CREDENTIALS_FILE")
    if not url.startswith("s3://") or file is None or "AWS_ACCESS_KEY_ID" in environ:
        return {}
    profile = environ.get("AWS_PROFILE", "default")
    found = configparser.ConfigParser(interpolation=None)
    try:
        read = found.read(file)
        section = found[profile]
        keys = {f"aws_{key}": section[f"aws_{key}"] for key in ("access_key_id", "secret_access_key")}
    except configparser.Error as error:
        raise ValueError(f"AWS_SHARED_CREDENTIALS_FILE {file}: {error.message.splitlines()[0]}") from None
    except KeyError as error:
        missing = f"has no {error.args[0]!r}" if read else "cannot be read"
        raise ValueError(f"AWS_SHARED_CREDENTIALS_FILE {file} {missing} (profile {profile!r})") from None
    token = section.get("aws_session_token")
    return keys | ({"aws_session_token": token} if token else {})
