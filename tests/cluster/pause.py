"""The image of every pod's first container, one static binary, as an archive that containerd takes."""

import hashlib
import io
import json
import tarfile
from pathlib import Path


def archive(name: str, binary: Path) -> bytes:
    """Docker's archive format: a manifest, a configuration, and one layer with one file."""
    layer = _tar({"pause": binary.read_bytes()})
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "manifest.json": manifest}
    return _tar(
        {"layer.tar": layer} | {path: json.dumps(content).encode() for path, content in files.items()}
    )


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
