"""apiextensions-apiserver of a current Kubernetes: built from Debian unstable's packages once, kept in the cache."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.binaries import built
from tests.cluster.packages import CONTROL_PLANE, Unavailable, require

_SCRIPT = Path(__file__).with_name("build-apiserver")


@dataclass(frozen=True)
class Binary:
    program: Path
    version: str
    """Of Kubernetes, such as `1.36.4`."""


def binary() -> Binary:
    """Built now where the cache has none.

    Raises:
        Unavailable: this machine cannot build it, or Debian unstable of today does not.
    """
    require(CONTROL_PLANE)
    try:
        folder = built("apiextensions-apiserver", _SCRIPT, ())
    except subprocess.SubprocessError:
        raise Unavailable(
            f"no API server of a current Kubernetes: {_SCRIPT.name} failed, "
            "`python -m tests.api_server.current` shows why"
        ) from None
    return Binary(folder / "apiextensions-apiserver", (folder / "version").read_text().strip())
