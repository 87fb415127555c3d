"""Publishes what `make release` has made, as it is: images and chart, the files as one artifact, and signatures."""

import json
import os
import tarfile
from pathlib import Path

from tools.release.artifacts import Part, Registry, digest_of
from tools.release.files import BILLS, IMAGES, check_sums, sha256
from tools.release.images import read_layout
from tools.release.signing import attest, check_key, sign
from tools.release.steps import BIN, VERSION, expect, expect_programs, run, say

CHART = "charts/rlhf-operator"
_FILES = "rlhf-release"
_HUB = "application/vnd.cncf.artifacthub"


def publish(release: Path, registry: Registry, key: Path | None) -> None:
    """A version is published once: where its tag has other content, nothing is pushed. A call that failed is repeated.

    Signatures are made last, each of a digest.
    """
    expect_programs("skopeo", *(["openssl"] if key else []))
    if key:
        check_key(key)
    names, digests = check_files(release)
    expect_free(registry, digests)
    archive = release / f"rlhf-operator-{VERSION}.tgz"
    if not _has_chart(registry, archive):  # it is pushed last
        plain = "1" if registry.plain else ""
        loaded = run("sh", release / "load.sh", registry.address, HELM=str(BIN / "helm"), PLAIN_HTTP=plain)
        say(loaded.strip())
    chart = registry.manifest(f"{CHART}:{VERSION}")
    expect(_has_chart(registry, archive) and chart is not None, f"no {CHART}:{VERSION} after it was pushed")
    digests[f"{CHART}:{VERSION}"] = digest_of(chart or b"")
    digests[f"{CHART}:artifacthub.io"] = _push_hub_data(registry, release)
    digests[f"{_FILES}:{VERSION}"] = _push_files(registry, release, names)
    for name, digest in digests.items():
        if key:
            repository = name.partition(":")[0]
            sign(registry, repository, digest, key)
            if bill := BILLS.get(name):
                attest(registry, repository, digest, release / bill, key)
    signed = f"signed with {key}" if key else "not signed: no KEY was given"
    say(f"\nrelease {VERSION} is published, {signed}:")
    say("".join(f"  {registry.address}/{name}@{digest}\n" for name, digest in digests.items()).rstrip())


def check_files(release: Path) -> tuple[list[str], dict[str, str]]:
    """The files, none of which was changed, and the digests of images: none of them and of their bills is missing."""
    names, digests = check_sums(release), read_layout(release / "images")
    missing = sorted({*IMAGES, *BILLS.values()} - {*names, *digests})
    expect(not missing, f"{release} lacks {', '.join(missing)}; run `make release` where all can be made")
    return names, digests


def expect_free(registry: Registry, digests: dict[str, str]) -> None:
    """Nothing else is published under this version."""
    for name, digest in digests.items():
        there = registry.manifest(name)
        expect(
            there is None or digest_of(there) == digest,
            f"{registry.address}/{name} is published already, with other content ({digest_of(there or b'')}, here "
            f"{digest}); a version is published once",
        )


def _has_chart(registry: Registry, archive: Path) -> bool:
    """Its content is the archive's. Of the digest that helm gives it the time of the file is a part."""
    there = registry.manifest(f"{CHART}:{VERSION}")
    return there is not None and f"sha256:{sha256(archive)}" in [
        each["digest"] for each in json.loads(there)["layers"]
    ]


def _push_hub_data(registry: Registry, release: Path) -> str:
    """Artifact Hub reads there who owns the chart's repository."""
    content = (release / "artifacthub-repo.yml").read_bytes()
    title = {"org.opencontainers.image.title": "artifacthub-repo.yml"}
    layer = Part(f"{_HUB}.repository-metadata.layer.v1.yaml", content, title)
    return registry.push(f"{CHART}:artifacthub.io", Part(f"{_HUB}.config.v1+yaml", b""), [layer])


def _push_files(registry: Registry, release: Path, names: list[str]) -> str:
    """All files but the images', each a layer with its name, as `oras pull` takes them."""
    files = ["SHA256SUMS", *(name for name in names if not name.startswith("images/"))]
    layers = [
        Part(
            "application/octet-stream",
            (release / name).read_bytes(),
            {"org.opencontainers.image.title": name},
        )
        for name in files
    ]
    return registry.push(f"{_FILES}:{VERSION}", Part("application/vnd.oci.empty.v1+json", b"{}"), layers)


def bundle(release: Path) -> Path:
    """One archive of the whole release, for a site without a network; `sh load.sh` in it loads it there."""
    names, _ = check_files(release)
    blobs = [
        str(each.relative_to(release)) for each in (release / "images" / "blobs").rglob("*") if each.is_file()
    ]
    top = f"rlhf-operator-{VERSION}"
    archive = release / f"{top}-bundle.tar"
    part = archive.with_name(f".{archive.name}.{os.getpid()}")
    with tarfile.open(part, "w") as tar:
        for name in ("SHA256SUMS", *names, *sorted(blobs)):
            tar.add(release / name, f"{top}/{name}")
    part.replace(archive)
    say(f"{archive}, {archive.stat().st_size / 2**20:,.0f} MiB, sha256 {sha256(archive)}; there:")
    say(f"  tar -xf {archive.name} && sh {top}/load.sh REGISTRY")
    return archive
