"""OCI artifacts that are no images, such as signatures: written as a layout in a scratch folder, pushed by skopeo."""

import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.release.steps import expect, run

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Part:
    """A layer or a configuration."""

    kind: str
    content: bytes
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Registry:
    """A registry with a path if it has one; without TLS, if `plain`."""

    address: str
    plain: bool = False

    def __post_init__(self) -> None:
        expect(
            re.fullmatch(r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)*", self.address) is not None,
            f"a registry is HOST[:PORT][/PATH] in lower case, such as registry.example/team; got {self.address!r}",
        )

    def push(self, name: str, config: Part, layers: list[Part]) -> str:
        """Returns its digest."""
        with tempfile.TemporaryDirectory(prefix="rlhf-artifact-") as scratch:
            digest = _write_layout(Path(scratch), config, layers)
            tls = [f"--dest-tls-verify={str(not self.plain).lower()}"]
            target = f"docker://{self.address}/{name}"
            copy = ("--insecure-policy", "copy", "--quiet", "--preserve-digests")
            run("skopeo", *copy, *tls, f"oci:{scratch}:artifact", target)
        return digest

    def manifest(self, name: str) -> bytes | None:
        """As the registry has it; None where it does not, or cannot be asked."""
        command = ["skopeo", "inspect", "--raw", f"--tls-verify={str(not self.plain).lower()}"]
        done = subprocess.run(
            [*command, f"docker://{self.address}/{name}"], capture_output=True, timeout=120, check=False
        )
        return done.stdout if done.returncode == 0 else None


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _write_layout(folder: Path, config: Part, layers: list[Part]) -> str:
    (folder / "blobs" / "sha256").mkdir(parents=True)
    body = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _write_blob(folder, config),
        "layers": [_write_blob(folder, layer) for layer in layers],
    }
    name = {"org.opencontainers.image.ref.name": "artifact"}
    described = _write_blob(folder, Part(MANIFEST, json.dumps(body).encode(), name))
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    digest: str = described["digest"]
    return digest


def _write_blob(folder: Path, part: Part) -> dict[str, Any]:
    digest = digest_of(part.content)
    (folder / "blobs" / digest.replace(":", "/")).write_bytes(part.content)
    body: dict[str, Any] = {"mediaType": part.kind, "digest": digest, "size": len(part.content)}
    return {**body, "annotations": part.annotations} if part.annotations else body
