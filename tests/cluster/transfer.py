"""Images on their way into containerd: only the layers that it does not have."""

import hashlib
import io
import json
import subprocess
import tarfile
from typing import IO

from tests.cluster.node import Place

_LIST_S, _SEND_S = 60, 1800


def contents(place: Place) -> set[str]:
    """The digests (as hexadecimal) of what a cluster's containerd holds: configurations, layers, manifests."""
    command = [*_ctr(place), "content", "ls", "--quiet"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=_LIST_S, check=True).stdout
    return {line.removeprefix("sha256:") for line in listed.split()}


def remove(place: Place, registry: str) -> None:
    """The names that a cluster's containerd has for images of a registry."""
    listed = subprocess.run(
        [*_ctr(place), "images", "ls", "--quiet"], capture_output=True, text=True, timeout=_LIST_S, check=True
    )
    if names := [name for name in listed.stdout.split() if name.startswith(registry)]:
        subprocess.run(
            [*_ctr(place), "images", "rm", *names], capture_output=True, timeout=_LIST_S, check=True
        )


def send(place: Place, name: str, archive: IO[bytes], have: set[str]) -> None:
    """`archive` is in Docker's format, read as it comes: `<digest>.tar` layers, `<digest>.json`, then their list."""
    command = [*_ctr(place), "images", "import", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            _convert(archive, process.stdin, name, have)
            process.stdin.close()
            code = process.wait(_SEND_S)
        finally:
            process.kill()
    if code != 0:
        raise RuntimeError(f"containerd refused the image {name} (exit code {code})")


def _convert(archive: IO[bytes], stream: IO[bytes], name: str, have: set[str]) -> None:
    """To the OCI format, in which a layer that the receiver has may be missing."""
    parts: dict[str, dict] = {}
    with (
        tarfile.open(fileobj=archive, mode="r|") as source,
        tarfile.open(fileobj=stream, mode="w|") as target,
    ):
        for member in source:
            digest, _, suffix = member.name.partition(".")
            if member.name == "manifest.json":
                (listed,) = json.load(source.extractfile(member))
            elif suffix in ("tar", "json") and "/" not in digest:
                kind = "layer.v1.tar" if suffix == "tar" else "config.v1+json"
                parts[member.name] = _descriptor(kind, digest, member.size)
                if digest not in have:
                    _add(target, f"blobs/sha256/{digest}", source.extractfile(member), member.size)
        manifest = {
            "schemaVersion": 2,
            "config": parts[listed["Config"]],
            "layers": [parts[layer] for layer in listed["Layers"]],
        }
        encoded = json.dumps(manifest).encode()
        digest = hashlib.sha256(encoded).hexdigest()
        described = _descriptor("manifest.v1+json", digest, len(encoded))
        described["annotations"] = {"io.containerd.image.name": name}
        for path, content in {
            f"blobs/sha256/{digest}": encoded,
            "index.json": json.dumps({"schemaVersion": 2, "manifests": [described]}).encode(),
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        }.items():
            _add(target, path, io.BytesIO(content), len(content))


def _descriptor(kind: str, digest: str, size: int) -> dict:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}


def _add(target: tarfile.TarFile, path: str, content: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(path)
    info.size = size
    target.addfile(info, content)


def _ctr(place: Place) -> list[str]:
    return ["ctr", "--address", str(place.containerd), "--namespace", "k8s.io"]
