"""Settings of a cluster's page, from the environment that the chart gives it."""

import os
import re
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

_OF_STORES = re.compile(r"(?i)(?:AWS|AZURE|GOOGLE|GCP)_.*")
NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Settings(NamedTuple):
    """`server`: the API server's URL; `ca`: file with its authority; `hosts`: names by which browsers call the page,
    beside those of loopback; `namespaces`: see Viewer; `port`; `folder`: for copies of stores' files."""

    server: str
    ca: str
    hosts: tuple[str, ...]
    namespaces: tuple[str, ...]
    port: int
    folder: Path


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Raises ValueError for a setting that is missing or wrong."""
    host, port = (environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: run it in a pod")
    namespaces = _list(environ, "RLHF_UI_NAMESPACES")
    if wrong := [name for name in namespaces if not NAMESPACE.fullmatch(name)]:
        raise ValueError(f"RLHF_UI_NAMESPACES must be names of namespaces; got {wrong[0]!r}")
    return Settings(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca=environ.get("RLHF_UI_CA", "/var/run/rlhf-ui/ca.crt"),
        hosts=_list(environ, "RLHF_UI_HOSTS"),
        namespaces=namespaces,
        port=int(environ.get("RLHF_UI_PORT", "8080")),
        folder=Path(environ.get("RLHF_UI_FOLDER", "/tmp/rlhf-ui")),
    )


def drop_keys(environ: MutableMapping[str, str] = os.environ) -> None:
    """Removes keys of stores from this process's environment, which their clients would use where a job has none."""
    for name in [name for name in environ if _OF_STORES.fullmatch(name)]:
        del environ[name]


def _list(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(filter(None, environ.get(name, "").split(",")))
