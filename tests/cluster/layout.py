"""Built images as plain files (the OCI layout), from which a cluster is sent only the layers that it does not have."""

import io
import json
import subprocess
import tarfile
from collections.abc import Iterable
from typing import IO

from tests.cluster.node import Place
from tests.cluster.packages import cache

FOLDER = cache() / "images-oci"
_INDEX = FOLDER / "index.json"
_BLOBS = FOLDER / "blobs" / "sha256"
_NAME = "org.opencontainers.image.ref.name"
_SEND_S = 1800


def send(place: Place, names: list[str]) -> None:
    """Makes containerd have these images."""
    images = [image for image in _named() if image["annotations"][_NAME] in names]
    ctr = ["ctr", "--address", str(place.containerd), "--namespace", "k8s.io"]
    listed = subprocess.run(
        [*ctr, "content", "ls", "--quiet"], capture_output=True, text=True, timeout=60, check=True
    )
    missing = _blobs(images) - {line.removeprefix("sha256:") for line in listed.stdout.split()}
    if not missing:
        return
    for image in images:
        image["annotations"]["io.containerd.image.name"] = image["annotations"][_NAME]
    with subprocess.Popen(
        [*ctr, "images", "import", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        try:
            _write(process.stdin, images, missing)
            process.stdin.close()
            code = process.wait(_SEND_S)
        finally:
            process.kill()
    if code != 0:
        raise RuntimeError(f"containerd refused the images {names} (exit code {code})")


def labels(name: str) -> dict[str, str]:
    """Of the image with this name; empty where there is none."""
    for image in _named():
        if image["annotations"][_NAME] == name:
            config = _blob(_blob(image["digest"])["config"]["digest"])
            return config["config"].get("Labels", {})
    return {}


def prune() -> None:
    """Deletes images that lost their name to newer ones, and what only they referred to."""
    images = _named()
    _INDEX.write_text(json.dumps({"schemaVersion": 2, "manifests": images}))
    used = _blobs(images)
    for blob in _BLOBS.iterdir():
        if blob.name not in used:
            blob.unlink()


def _write(stream: IO[bytes], images: list[dict], blobs: Iterable[str]) -> None:
    files = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "manifests": images},
    }
    with tarfile.open(fileobj=stream, mode="w|") as tar:
        for name, content in files.items():
            encoded = json.dumps(content).encode()
            info = tarfile.TarInfo(name)
            info.size = len(encoded)
            tar.addfile(info, io.BytesIO(encoded))
        for blob in blobs:
            tar.add(_BLOBS / blob, f"blobs/sha256/{blob}")


def _named() -> list[dict]:
    if not _INDEX.exists():
        return []
    return [
        image
        for image in json.loads(_INDEX.read_text())["manifests"]
        if _NAME in image.get("annotations", {})
    ]


def _blobs(images: list[dict]) -> set[str]:
    """The manifests, configurations and layers of these images."""
    found = set()
    for image in images:
        manifest = _blob(image["digest"])
        for part in (image, manifest["config"], *manifest["layers"]):
            found.add(part["digest"].removeprefix("sha256:"))
    return found


def _blob(digest: str) -> dict:
    return json.loads((_BLOBS / digest.removeprefix("sha256:")).read_text())
