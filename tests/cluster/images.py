"""The images of the tests, built from Debian's packages and pip's alone: no registry and no daemon.

What has not changed is not built again: an image carries the hash of its inputs as a label.
"""

import fcntl
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import layout, pip_settings
from tests.cluster.node import Place
from tests.cluster.packages import IMAGES, cache, require, require_root

OPERATOR = "localhost/rlhf-operator:dev"
TRAINER = "localhost/rlhf-trainer:dev"
SEAWEEDFS = "localhost/seaweedfs:dev"
_ROOT = Path(__file__).parents[2]
_OURS = (
    ".dockerignore",
    "Dockerfile",
    "pyproject.toml",
    "constraints.txt",
    "README.md",
    "operator",
    "trainer_image",
)
_BUILDS = {
    OPERATOR: (_OURS, ("--target=operator",)),
    TRAINER: (_OURS, ("--target=trainer",)),
    SEAWEEDFS: (("tests/cluster/Dockerfile", "constraints.txt"), ("--file=tests/cluster/Dockerfile",)),
}
"""What each is made of, and how."""
_BASE = "localhost/python:3.11-slim-bookworm"
_DEBIAN = (
    *("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-pip,ca-certificates,libnuma1"),
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
    '--customize-hook=rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; ln -s python3 "$1"/usr/bin/python',
    "bookworm",
)
_LABEL = "dev.rlhf.inputs"
_BUILD_S, _LOCK_S = 3600, 3600


def build() -> None:
    """Those whose inputs have changed, and what they need; a layer of dependencies is made anew only with these.

    Raises:
        Unavailable: this machine cannot build them.
    """
    require_root()
    require(IMAGES)
    with _lock(), tempfile.TemporaryDirectory(prefix="rlhf-images-") as folder:
        base = _digest(text.encode() for text in _DEBIAN)
        if _base_inputs() != base:
            _build_base(Path(folder) / "base.tar", base)
        for name, (sources, arguments) in _BUILDS.items():
            inputs = _digest([base.encode(), *_contents(sources)])
            if layout.labels(name).get(_LABEL) == inputs:
                continue
            _say(f"building {name}")
            label = f"--label={_LABEL}={inputs}"
            command = (
                "bud",
                "--quiet",
                "--isolation=chroot",
                "--layers",
                f"--build-arg=BASE_IMAGE={_BASE}",
                label,
            )
            _buildah(*command, *pip_settings.mounts(Path(folder)), *arguments, f"--tag={name}", ".")
            _buildah("push", "--quiet", name, f"oci:{layout.FOLDER}:{name}")
        _buildah("rmi", "--prune")
        layout.prune()


def load(place: Place) -> None:
    """Into a cluster that is up: what it does not have yet."""
    with _lock():
        layout.send(place, list(_BUILDS))


def _build_base(tar: Path, inputs: str) -> None:
    """A stand-in for Docker's image of that name."""
    _say(f"building {_BASE}")
    _run(*_DEBIAN, str(tar))
    container = _buildah("from", "scratch").strip()
    _buildah("add", "--quiet", container, str(tar))
    _buildah("config", f"--label={_LABEL}={inputs}", container)
    _buildah("commit", "--quiet", "--rm", container, _BASE)


def _base_inputs() -> str:
    """What the base was made from; empty where there is none."""
    if json.loads(_buildah("images", "--json", "--filter", f"reference={_BASE}") or "null"):
        config = json.loads(_buildah("inspect", "--type=image", _BASE))["OCIv1"]["config"]
        return config.get("Labels", {}).get(_LABEL, "")
    return ""


def _contents(sources: Iterable[str]) -> Iterator[bytes]:
    for source in sources:
        top = _ROOT / source
        for file in [top] if top.is_file() else sorted(top.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield str(file.relative_to(_ROOT)).encode()
                yield file.read_bytes()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


def _buildah(*arguments: str) -> str:
    """With a store of its own: nobody else's images are touched."""
    root = ("--root", str(cache() / "images"), "--runroot", str(cache() / "images-run"))
    return _run("buildah", *root, "--storage-driver=overlay", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stderr[-4000:]}")
    return done.stdout


@contextmanager
def _lock() -> Iterator[None]:
    """One builder at a time."""
    cache().mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_S
    with (cache() / "images.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"someone else builds images for {_LOCK_S} s already") from None
                time.sleep(0.5)
        yield


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
