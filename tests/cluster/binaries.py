"""Servers of Kubernetes: built from Debian's packages once, kept in the cache.

`python -m tests.cluster.binaries` does so beside other work. Imports no library, so that any Python can.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.packages import BUILD, Unavailable, cache, lock, require

VERSION = "1.20.2"
_SCRIPT = Path(__file__).with_name("build-kubernetes")
_BUILD_S = 3600


def binaries() -> Path:
    """The folder that holds Kubernetes' programs.

    Raises:
        Unavailable: this machine cannot build them.
    """
    return built(f"kubernetes-{VERSION}", _SCRIPT, BUILD)


def built(name: str, script: Path, packages: tuple[str, ...]) -> Path:
    """The folder that `script OUT SCRATCH` fills, which needs `packages`.

    Called where the cache has no folder of this name and script; a build that fails leaves nothing there.

    Raises:
        Unavailable: this machine cannot have the packages.
        CalledProcessError: the script failed; it has said why.
    """
    recipe = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    folder = cache() / f"{name}-{recipe}"
    with lock(name):
        if not folder.exists():
            require(packages)
            print(f"building {name} into {folder}, once: 3 or 4 minutes on 2 cores", file=sys.stderr)
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache()) as part:
                subprocess.run([str(script), f"{part}/out", part], check=True, timeout=_BUILD_S)
                Path(part, "out").rename(folder)
    return folder


if __name__ == "__main__":
    try:
        print(f"Kubernetes {VERSION} is in {binaries()}")
    except Unavailable as error:
        sys.exit(f"error: {error}")
