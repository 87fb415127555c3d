"""Chooses, from the environment of a job's pods, what opens its store: names that are known, and nothing else, since an
environment may name files, programs and libraries of the process that it is given to."""

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from .hidden import Hidden

_NAMES = {
    "s3": (
        *(
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
        ),
        *("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"),
    ),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
_NEEDED = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "gs": _NAMES["gs"],
    "az": _NAMES["az"],
}
"""Without these a client would ask for the identity of the machine that it runs on."""
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class Access(NamedTuple):
    """Access to a job's store: its URL, and keys by the names of their environment variables."""

    url: str
    keys: Mapping[str, str]


def check_store(url: str | None) -> str:
    """The URL of an object store. Raises Hidden for a store that is a volume, which no key opens."""
    if url is None or url.partition("://")[0] not in _NAMES:
        raise Hidden(
            "its checkpoints are on a volume of its pods (spec.checkpoint.store); where that is mounted, "
            "`rlhf ui FOLDER` shows its figures and samples"
        )
    return url


def choose_access(store: str | None, environment: Mapping[str, str]) -> Access:
    """Raises Hidden for a store that is a volume, and without keys in the environment."""
    url = check_store(store)
    scheme = url.partition("://")[0]
    keys = {name: value for name in _NAMES[scheme] if (value := environment.get(name))}
    if missing := [name for name in _NEEDED[scheme] if name not in keys]:
        raise Hidden(
            f"no Secret of its pods (spec.pods.secrets) has {' and '.join(missing)}; with keys of your own, "
            f"`rlhf ui {url}` shows its figures and samples"
        )
    for name in _ENDPOINTS:
        _check_endpoint(keys.get(name, ""))
    return Access(url, keys)


def _check_endpoint(url: str) -> None:
    """Raises Hidden for an address of a machine's own metadata, which would answer the page with its identity."""
    with suppress(ValueError):
        if ipaddress.ip_address(urlsplit(url).hostname or "").is_link_local:
            raise Hidden("its store's endpoint is a link-local address, which the page does not ask")
