"""A release is published to a real registry, carried into another, and installed from there by the names that it has.

These tests come first: the chart is installed once on a cluster, and the next ones want another installation.
"""

import base64
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.cluster import images as cluster_images
from tests.cluster.node import Place
from tests.cluster.packages import Unavailable
from tests.cluster.registry import registry
from tests.cluster.transfer import contents
from tests.support.installed import SYSTEM
from tests.support.kubernetes.cluster import Cluster, existing
from tests.support.kubernetes.helm import helm
from tests.support.kubernetes.kube import get, kubectl
from tests.support.sources.packaging import ROOT
from tools.release import files, images, steps
from tools.release.artifacts import Registry

CHART = f"charts/rlhf-operator:{steps.VERSION}"
OPERATOR, TRAINER = files.IMAGES
PASSPHRASE = "of tests"


@dataclass(frozen=True)
class Release:
    """One that is published, with its files in `folder`."""

    folder: Path
    address: str
    key: ec.EllipticCurvePrivateKey
    output: str

    @property
    def registry(self) -> Registry:
        return Registry(self.address, plain=True)

    def run(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-m", "tools.release", verb, str(self.folder), *arguments)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = {"PATH": f"{steps.BIN}:/usr/bin:/bin", "RELEASE_KEY_PASSPHRASE": PASSPHRASE, **environment}
    return subprocess.run(
        command, cwd=ROOT, env=paths, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Made of the tests' image of the operator, and of a small one for two machines in place of the trainer's."""
    if existing() is not None:
        pytest.skip("the nodes must find a registry of this machine: unset RLHF_TEST_KUBECONFIG")
    place, folder = Place(cluster.kubeconfig.parents[1]), tmp_path_factory.mktemp("release")
    made = folder / "dist"
    made.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    secret = serialization.BestAvailableEncryption(PASSPHRASE.encode())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    (folder / "key.pem").write_bytes(pem)
    try:
        with registry(place, folder, steps.REGISTRY) as address:
            files.make_wheel(made)
            files.make_chart(made)
            files.make_lists(made)
            for bill in files.BILLS.values():
                (made / bill).write_text(json.dumps({"bomFormat": "CycloneDX", "metadata": {"for": bill}}))
            cluster_images.copy(cluster_images.OPERATOR, made / "images", OPERATOR)
            build_for_two_machines(TRAINER, made / "images", folder)
            files.write_sums(made)
            arguments = ("--registry", address, "--plain-http", "--key", str(folder / "key.pem"))
            published = run(sys.executable, "-m", "tools.release", "publish", str(made), *arguments)
            assert published.returncode == 0, published.stderr
            yield Release(made, address, key, published.stdout)
    except Unavailable as reason:
        pytest.skip(str(reason))


def build_for_two_machines(image: str, layout: Path, folder: Path) -> None:
    """By the release's own steps, twice: the second build replaces the first."""
    (folder / "context").mkdir()
    (folder / "context" / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    storage = "".join(f'{name} = "{folder / name}"\n' for name in ("graphroot", "runroot"))
    (folder / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{storage}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        for _ in range(2):
            images.build("buildah", image, (), ("linux/amd64", "linux/arm64"), folder / "context")
        images.export("buildah", image, layout)


def test_everything_is_in_the_registry_as_it_was_made(release: Release) -> None:
    digests = images.read_layout(release.folder / "images")
    for image in files.IMAGES:
        assert f"{release.address}/{image}@{digests[image]}" in release.output
        assert digest(release.registry, image) == digests[image]
    index = json.loads(release.registry.manifest(TRAINER))
    assert {each["platform"]["architecture"] for each in index["manifests"]} == {"amd64", "arm64"}
    assert len(index["manifests"]) == 2
    (chart,) = json.loads(release.registry.manifest(CHART))["layers"]
    assert chart["digest"] == f"sha256:{files.sha256(release.folder / f'rlhf-operator-{steps.VERSION}.tgz')}"
    layers = json.loads(release.registry.manifest(f"rlhf-release:{steps.VERSION}"))["layers"]
    published = {each["annotations"]["org.opencontainers.image.title"]: each["digest"] for each in layers}
    listed = (line.split("  ") for line in (release.folder / "SHA256SUMS").read_text().splitlines())
    expected = {name: f"sha256:{of_it}" for of_it, name in listed if not name.startswith("images/")}
    assert published.items() > expected.items()
    hub = json.loads(release.registry.manifest("charts/rlhf-operator:artifacthub.io"))
    assert [each["mediaType"] for each in hub["layers"]] == [
        "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"
    ]


def digest(where: Registry, name: str) -> str:
    manifest = where.manifest(name)
    assert manifest is not None, name
    content = hashes.Hash(hashes.SHA256())
    content.update(manifest)
    return f"sha256:{content.finalize().hex()}"


def test_each_part_is_signed_by_its_digest(release: Release, tmp_path: Path) -> None:
    """Checked as cosign does it: the text that is signed is about this digest, and its signature is of this key."""
    for name in (*files.IMAGES, CHART, f"rlhf-release:{steps.VERSION}"):
        signed, repository = digest(release.registry, name), name.partition(":")[0]
        layer, payload = only_layer(release, repository, signed, "sig", tmp_path)
        assert layer["mediaType"] == "application/vnd.dev.cosign.simplesigning.v1+json"
        critical = json.loads(payload)["critical"]
        assert critical["image"] == {"docker-manifest-digest": signed}
        assert critical["identity"] == {"docker-reference": f"{release.address}/{repository}"}
        proof = base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
        public = release.key.public_key()
        public.verify(proof, payload, ec.ECDSA(hashes.SHA256()))
        with pytest.raises(InvalidSignature):
            public.verify(proof, payload + b" ", ec.ECDSA(hashes.SHA256()))


def test_an_image_has_its_bill_of_materials_as_a_signed_statement(release: Release, tmp_path: Path) -> None:
    """By the specifications of DSSE and in-toto."""
    for name, bill in files.BILLS.items():
        signed, repository = digest(release.registry, name), name.partition(":")[0]
        layer, content = only_layer(release, repository, signed, "att", tmp_path)
        assert layer["mediaType"] == "application/vnd.dsse.envelope.v1+json"
        envelope = json.loads(content)
        kind, statement = envelope["payloadType"], base64.b64decode(envelope["payload"])
        to_sign = b" ".join([b"DSSEv1", b"%d" % len(kind), kind.encode(), b"%d" % len(statement), statement])
        proof = base64.b64decode(envelope["signatures"][0]["sig"])
        release.key.public_key().verify(proof, to_sign, ec.ECDSA(hashes.SHA256()))
        body = json.loads(statement)
        assert [each["digest"] for each in body["subject"]] == [{"sha256": signed.removeprefix("sha256:")}]
        assert (body["predicateType"], body["predicate"]["metadata"]) == (
            "https://cyclonedx.org/bom",
            {"for": bill},
        )


def only_layer(
    release: Release, repository: str, signed: str, kind: str, folder: Path
) -> tuple[dict[str, Any], bytes]:
    """Of the artifact that stands beside what has the digest."""
    here = folder / f"{repository.replace('/', '-')}.{kind}"
    source = f"docker://{release.address}/{repository}:{signed.replace(':', '-')}.{kind}"
    copied = run("skopeo", "copy", "--src-tls-verify=false", source, f"dir:{here}")
    assert copied.returncode == 0, copied.stderr
    (layer,) = json.loads((here / "manifest.json").read_text())["layers"]
    return layer, (here / layer["digest"].removeprefix("sha256:")).read_bytes()


def test_a_version_is_published_once(release: Release) -> None:
    again = release.run("publish", "--registry", release.address, "--plain-http")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines()[-5:] == release.output.splitlines()[-5:], "the same digests"
    source, target = (f"docker://{release.address}/{name}" for name in (TRAINER, f"taken/{OPERATOR}"))
    plain = ("--src-tls-verify=false", "--dest-tls-verify=false")
    assert run("skopeo", "copy", "--all", *plain, source, target).returncode == 0
    other = release.run("publish", "--registry", f"{release.address}/taken", "--plain-http")
    assert other.returncode == 1
    assert f"taken/{OPERATOR} is published already, with other content" in other.stderr
    assert Registry(f"{release.address}/taken", plain=True).manifest(TRAINER) is None, "nothing was pushed"


def test_a_bundle_brings_it_into_a_registry_elsewhere(release: Release, tmp_path: Path) -> None:
    bundled = release.run("bundle")
    assert bundled.returncode == 0, bundled.stderr
    with tarfile.open(release.folder / f"rlhf-operator-{steps.VERSION}-bundle.tar") as tar:
        tar.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    site = f"{release.address}/site"
    loaded = run("sh", str(folder / "load.sh"), site, PLAIN_HTTP="1")
    assert loaded.returncode == 0, loaded.stderr
    assert f"--set global.imageRegistry={site}" in loaded.stdout
    there = Registry(site, plain=True)
    for name in (*files.IMAGES, CHART):
        assert digest(there, name) == digest(release.registry, name), "signatures of it hold there too"
    names = (folder / "images.txt").read_text().split()
    assert names == [f"{steps.REGISTRY}/{image}" for image in files.IMAGES]
    (folder / "install.yaml").write_text("")
    spoilt = run("sh", str(folder / "load.sh"), site, PLAIN_HTTP="1")
    assert (spoilt.returncode, "install.yaml: FAILED" in spoilt.stdout) == (1, True)


def test_it_is_installed_from_the_registry_without_any_value(release: Release, cluster: Cluster) -> None:
    where = ("-n", SYSTEM)
    chart = (f"oci://{release.address}/charts/rlhf-operator", "--version", steps.VERSION, "--plain-http")
    try:
        helm(
            *("install", "rlhf", *chart, *where, "--create-namespace", "--wait", "--timeout", "100s"),
            kubeconfig=cluster.kubeconfig,
        )
        helm("test", "rlhf", *where, kubeconfig=cluster.kubeconfig)
        pods = get(cluster.kubeconfig, "pods", *where, "-l", "app.kubernetes.io/component=operator")["items"]
        containers = [container for pod in pods for container in pod["spec"]["containers"]]
        assert {container["image"] for container in containers} == {f"{steps.REGISTRY}/{OPERATOR}"}
        # Layers and configuration the node had; the manifest is another one than that of its own copy.
        pulled = digest(release.registry, OPERATOR).removeprefix("sha256:")
        assert pulled in contents(Place(cluster.kubeconfig.parents[1]))
        trainer = {"name": "RLHF_TRAINER_IMAGE", "value": f"{steps.REGISTRY}/{TRAINER}"}
        assert all(trainer in container["env"] for container in containers)
    finally:
        helm("uninstall", "rlhf", *where, "--wait", "--ignore-not-found", kubeconfig=cluster.kubeconfig)
        kubectl(cluster.kubeconfig, "delete", "crd", "--selector=app.kubernetes.io/instance=rlhf")
