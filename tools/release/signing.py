"""Signatures as `cosign verify --key` reads them, made with openssl: cosign itself is in no package registry.

A signature is an artifact beside what it signs, at the tag `sha256-DIGEST.sig`: a small JSON text that names the digest
(a "simple signing" payload), and in its annotation the ECDSA signature of that text. No transparency log has it.
"""

import base64
import json
import os
import subprocess
import tempfile
from pathlib import Path

from tools.release.artifacts import Part, Registry, digest_of
from tools.release.steps import expect, last_line, say

PASSPHRASE = "RELEASE_KEY_PASSPHRASE"
PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
ANNOTATION = "dev.cosignproject.cosign/signature"
ENVELOPE, STATEMENT = "application/vnd.dsse.envelope.v1+json", "application/vnd.in-toto+json"
PREDICATE = "https://cyclonedx.org/bom"


def check_key(key: Path) -> None:
    """It is a private key on the curve P-256 that the passphrase opens."""
    expect(key.is_file(), f"no signing key {key}")
    shown = _openssl("pkey", "-in", str(key), "-passin", f"env:{PASSPHRASE}", "-noout", "-text_pub")
    expect(
        b"P-256" in shown,
        f"{key} must be an ECDSA key on the curve P-256, as `openssl ecparam -name prime256v1 -genkey` makes it",
    )


def sign(registry: Registry, name: str, digest: str, key: Path) -> None:
    """The object of the digest in a repository, unless the same text is signed there already."""
    payload = json.dumps(
        {
            "critical": {
                "identity": {"docker-reference": f"{registry.address}/{name}"},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": None,
        }
    ).encode()
    tag = f"{name}:{digest.replace(':', '-')}.sig"
    if digest_of(payload).encode() in (registry.manifest(tag) or b""):
        return
    layer = Part(PAYLOAD, payload, {ANNOTATION: _sign(payload, key)})
    registry.push(tag, _config(payload), [layer])
    say(f"signed {registry.address}/{name}@{digest}")


def attest(registry: Registry, name: str, digest: str, bill: Path, key: Path) -> None:
    """An image's bill of materials beside it, as a signed statement about its digest (in-toto in a DSSE envelope)."""
    tag = f"{name}:{digest.replace(':', '-')}.att"
    if registry.manifest(tag) is not None:
        return
    statement = json.dumps(
        {
            "_type": "https://in-toto.io/Statement/v0.1",
            "predicateType": PREDICATE,
            "subject": [
                {"name": f"{registry.address}/{name}", "digest": {"sha256": digest.partition(":")[2]}}
            ],
            "predicate": json.loads(bill.read_text()),
        }
    ).encode()
    signed = _sign(f"DSSEv1 {len(STATEMENT)} {STATEMENT} {len(statement)} ".encode() + statement, key)
    encoded = base64.b64encode(statement).decode()
    envelope = {
        "payloadType": STATEMENT,
        "payload": encoded,
        "signatures": [{"keyid": "", "sig": signed}],
    }
    content = json.dumps(envelope).encode()
    layer = Part(ENVELOPE, content, {ANNOTATION: "", "predicateType": PREDICATE})
    registry.push(tag, _config(content), [layer])
    say(f"attested {bill.name} of {registry.address}/{name}@{digest}")


def _config(content: bytes) -> Part:
    """Of an image with that one layer, which is what cosign takes it for."""
    rootfs = {"type": "layers", "diff_ids": [digest_of(content)]}
    config = {"architecture": "", "os": "", "config": {}, "rootfs": rootfs}
    return Part("application/vnd.oci.image.config.v1+json", json.dumps(config).encode())


def _sign(content: bytes, key: Path) -> str:
    with tempfile.NamedTemporaryFile(prefix="rlhf-payload-") as file:
        file.write(content)
        file.flush()
        signed = _openssl("dgst", "-sha256", "-sign", str(key), "-passin", f"env:{PASSPHRASE}", file.name)
    return base64.b64encode(signed).decode()


def _openssl(*arguments: str) -> bytes:
    """The passphrase is in its environment alone; without one it asks nobody."""
    environment = {PASSPHRASE: "", **os.environ}
    done = subprocess.run(
        ["openssl", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    reason = last_line(done.stderr.decode(errors="replace"))
    expect(
        done.returncode == 0, f"the signing key cannot be used (its passphrase is in {PASSPHRASE}): {reason}"
    )
    return done.stdout
