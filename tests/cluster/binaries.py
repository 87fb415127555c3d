"""Kubernetes' binaries: built from Debian's source package once, kept in the cache."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.packages import BUILD, cache, require

VERSION = "1.20.2"
_SCRIPT = Path(__file__).with_name("build-kubernetes")
_BUILD_S = 3600


def binaries() -> Path:
    """The folder that holds them. Built now where the cache has none; a build that fails leaves nothing there.

    Raises:
        Unavailable: this machine cannot build them.
    """
    recipe = hashlib.sha256(_SCRIPT.read_bytes()).hexdigest()[:12]
    folder = cache() / f"kubernetes-{VERSION}-{recipe}"
    if folder.exists():
        return folder
    require(BUILD)
    print(f"building Kubernetes {VERSION} into {folder}, once: about 4 minutes on 2 cores", file=sys.stderr)
    cache().mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".kubernetes-", dir=cache()))
    try:
        subprocess.run([str(_SCRIPT), str(part / "out"), str(part)], check=True, timeout=_BUILD_S)
        (part / "out").rename(folder)
    except OSError:
        # Someone else's build was first.
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(part)
    return folder
