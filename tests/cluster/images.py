"""The images of the tests, built from Debian's packages and pip's alone: no registry and no daemon.

What has not changed is not built again: the hash of an image's inputs is kept with it.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.cluster import pip_settings, transfer
from tests.cluster.node import Place
from tests.cluster.packages import IMAGES, cache, lock, require, require_root

OPERATOR = "localhost/rlhf-operator:dev"
TRAINER = "localhost/rlhf-trainer:dev"
ENVIRONMENT = "localhost/rlhf-environment:dev"
SEAWEEDFS = "localhost/seaweedfs:dev"
_ROOT = Path(__file__).parents[2]
_OURS = (
    ".dockerignore",
    "Dockerfile",
    "LICENSE",
    "pyproject.toml",
    "constraints",
    "README.md",
    "operator",
    "trainer_image",
)
_BUILDS = {
    OPERATOR: (_OURS, ("--target=operator",)),
    TRAINER: (_OURS, ("--target=trainer",)),
    ENVIRONMENT: (_OURS, ("--target=environment",)),
    SEAWEEDFS: (("tests/cluster/Dockerfile", "constraints/common.txt"), ("--file=tests/cluster/Dockerfile",)),
}
"""The sources of each image, and the arguments of its build."""
_BASE = "localhost/python:3.11-slim-bookworm"
_DEBIAN = (
    *("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,python3-pip,ca-certificates,libnuma1"),
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")),
    '--customize-hook=rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED; ln -s python3 "$1"/usr/bin/python',
    "bookworm",
)
# A store of its own: nobody else's images are touched.
_FOLDER = cache() / "images"
_STORE = ("buildah", "--root", str(_FOLDER), "--runroot", f"{_FOLDER}-run", "--storage-driver=overlay")
_NOTES = cache() / "images.json"
_BUILD_S = 3600


def build() -> None:
    """Those whose inputs have changed, and what they need; a layer of dependencies is made anew only with these.

    Raises:
        Unavailable: this machine cannot build them.
    """
    require_root()
    require(IMAGES)
    with lock("images"), tempfile.TemporaryDirectory(prefix="rlhf-images-") as folder:
        made, base = _made(), _digest(text.encode() for text in _DEBIAN)
        if made.get(_BASE) != f"{_id(_BASE)} {base}":
            _build_base(Path(folder) / "base.tar")
            _note(_BASE, base)
        for name, (sources, arguments) in _BUILDS.items():
            inputs = _digest([base.encode(), *_contents(sources)])
            if made.get(name) == f"{_id(name)} {inputs}":
                continue
            _say(f"building {name}")
            command = ("bud", "--quiet", "--isolation=chroot", "--layers", f"--build-arg=BASE_IMAGE={_BASE}")
            _buildah(*command, *pip_settings.mounts(Path(folder)), *arguments, f"--tag={name}", ".")
            _note(name, inputs)
        # Containers that interrupted builds left, which hold their images; there is no other builder here.
        _buildah("rm", "--all")
        _buildah("rmi", "--prune")


def load(place: Place) -> None:
    """Into a cluster that is up: what it does not have yet."""
    with lock("images"):
        have = transfer.contents(place)
        for name in _BUILDS:
            if _id(name) in have:
                continue
            _say(f"loading {name}")
            push = [*_STORE, "push", "--quiet", name, f"docker-archive:/dev/stdout:{name}"]
            with subprocess.Popen(push, stdout=subprocess.PIPE) as archive:
                transfer.send(place, name, archive.stdout, have)


def copy(name: str, layout: Path, reference: str) -> None:
    """Into an OCI layout, with the layers as `load` sends them: a node that pulls the image has them already."""
    source = f"containers-storage:[overlay@{_FOLDER}+{_FOLDER}-run]{name}"
    how = ("--insecure-policy", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers")
    with lock("images"):
        _run("skopeo", *how, source, f"oci:{layout}:{reference}")


def _build_base(tar: Path) -> None:
    """A stand-in for Docker's image of that name."""
    _say(f"building {_BASE}")
    _run(*_DEBIAN, str(tar))
    container = _buildah("from", "scratch").strip()
    _buildah("add", "--quiet", container, str(tar))
    _buildah("commit", "--quiet", "--rm", container, _BASE)


def _id(name: str) -> str:
    """The digest of an image's configuration; empty where there is no such image."""
    listed = json.loads(_buildah("images", "--json", "--no-trunc", "--filter", f"reference={name}") or "null")
    return listed[0]["id"].removeprefix("sha256:") if listed else ""


def _made() -> dict[str, str]:
    """By name, an image and the hash of what it was made from.

    Not a label: an older build's, whose layers are all still right, would stay.
    """
    return json.loads(_NOTES.read_text()) if _NOTES.exists() else {}


def _note(name: str, inputs: str) -> None:
    _NOTES.write_text(json.dumps(_made() | {name: f"{_id(name)} {inputs}"}, indent=1))


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
    return _run(*_STORE, *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed:\n{done.stderr[-4000:]}")
    return done.stdout


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
