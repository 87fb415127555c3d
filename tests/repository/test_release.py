"""`make release`: what it makes, and what stops it. tests/cluster/jobs/test_a_release.py publishes and installs one."""

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from tests.support.kubernetes.helm import CHART, Loader
from tests.support.sources.packaging import OF_WHEEL, ROOT, WHEEL, done, pins
from tests.support.sources.scripts import load_script
from tools.release import __main__ as release
from tools.release import files, images, krew, steps

KUBECTL = Path(sys.executable).with_name("kubectl")
REFERENCE = "org.opencontainers.image.ref.name"
MACHINE = {machine: name for name, machine in krew.PLATFORMS.items()}.get(platform.machine(), "")


def test_every_place_of_publication_is_the_one_of_the_settings():
    chart, values = (yaml.safe_load((CHART / name).read_text()) for name in ("Chart.yaml", "values.yaml"))
    assert values["image"]["registry"] == steps.REGISTRY
    assert (chart["home"], chart["sources"]) == (steps.HOME, [steps.HOME])
    assert chart["icon"].startswith(f"{steps.HOME}/")
    assert (ROOT / chart["icon"].removeprefix(f"{steps.HOME}/")).is_file()
    entries = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert {each["image"]: tuple(each["platforms"]) for each in entries} == {
        f"{steps.REGISTRY}/{image}": images.PLATFORMS[image] for image in files.IMAGES
    }
    addresses = {
        steps.HOME,
        steps.FILES,
        *re.findall(r"url: (\S+)", chart["annotations"]["artifacthub.io/links"]),
    }
    assert all(address.startswith(steps.HOME) for address in addresses)
    install = f"oci://{steps.REGISTRY}/charts/rlhf-operator --version {steps.VERSION} "
    assert install in load_script(ROOT / "tools" / "make_chart_reference.py").HEAD
    assert install in (ROOT / "docs" / "guides" / "clusters" / "cluster.md").read_text()


def test_a_release_has_the_chart_of_its_version_and_what_it_makes_as_one_file(tmp_path):
    files.make_chart(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {
        f"rlhf-operator-{steps.VERSION}.tgz",
        "install.yaml",
    }
    text = (tmp_path / "install.yaml").read_text()
    bodies = [body for body in yaml.load_all(text, Loader) if body]
    for body in bodies:
        kubernetes_validate.validate(body, "1.37", strict=True)
    kinds = [body["kind"] for body in bodies]
    assert kinds.count("CustomResourceDefinition") == len(list((ROOT / "crds").iterdir()))
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    keys = [
        each["valueFrom"]["secretKeyRef"] for each in container["env"] if each["name"] == "RLHF_TOKEN_KEY"
    ]
    # No key that everybody who downloads it would have: the commands at its head make one.
    assert "Secret" not in kinds
    assert f"create secret generic {keys[0]['name']} --from-literal={keys[0]['key']}=" in text
    assert container["image"] == f"{steps.REGISTRY}/rlhf-operator:{steps.VERSION}"


@OF_WHEEL
@pytest.mark.skipif(not MACHINE, reason="the plugin is for amd64 and arm64")
def test_the_plugin_that_its_krew_manifest_names_runs_with_a_python_and_nothing_else(tmp_path):
    """Installed as krew does it: checked, unpacked, and its program linked to from the PATH."""
    made, store, programs = tmp_path / "made", tmp_path / "store", tmp_path / "bin"
    for folder in (made, store, programs):
        folder.mkdir()
    (wheel,) = WHEEL.glob("*.whl")
    try:
        krew.make_plugin(made, wheel, (MACHINE,), (f"3.{sys.version_info.minor}",))
    except steps.Failed as failed:
        if "connection broken by" in str(failed):
            pytest.skip("no package registry can be reached")
        raise
    manifest = yaml.safe_load((made / "rlhf.yaml").read_text())
    assert check_krew(manifest) == []
    (platform_of_it,) = manifest["spec"]["platforms"]
    archive = made / Path(platform_of_it["uri"]).name
    assert files.sha256(archive) == platform_of_it["sha256"]
    assert done("tar", "-xf", archive, "-C", store).returncode == 0
    (programs / "kubectl-rlhf").symlink_to(store / platform_of_it["bin"])
    (programs / "kubectl").symlink_to(KUBECTL)
    (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    path = f"{programs}:/usr/bin:/bin"
    listed = done("kubectl", "rlhf", "list", PATH=path, PYTHONPATH="/nowhere", HOME=str(tmp_path))
    assert "there is no such kubeconfig" in listed.stderr, listed
    lacking = done(store / "kubectl-rlhf", PATH="/usr/bin:/bin", KUBECTL_RLHF_PYTHON="/nowhere")
    if not any(shutil.which(f"python3.{minor}", path="/usr/bin:/bin") for minor in (11, 12, 13)):
        assert (lacking.returncode, "needs Python 3.11" in lacking.stderr) == (1, True)


def check_krew(manifest: dict) -> list[str]:
    """Complaints of krew's validation about a manifest (its pkg/index/validation, v1alpha2)."""
    spec = manifest["spec"]
    rules = {
        "apiVersion": manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2",
        "kind": manifest["kind"] == "Plugin",
        "name": re.fullmatch(r"[\w-]+", manifest["metadata"]["name"]),
        "version": re.fullmatch(r"v\d+\.\d+\.\d+(-[\w.]+)?", spec["version"]),
        "shortDescription": spec["shortDescription"] and "\n" not in spec["shortDescription"],
        "platforms": spec["platforms"],
    }
    for place, each in enumerate(spec["platforms"]):
        rules |= {
            f"{place} fields": each.keys() == {"selector", "uri", "sha256", "bin"},
            f"{place} uri": each["uri"].startswith("https://") and each["uri"].endswith((".tar.gz", ".zip")),
            f"{place} sha256": re.fullmatch("[0-9a-f]{64}", each["sha256"]),
            f"{place} bin": each["bin"] and not Path(each["bin"]).is_absolute(),
            f"{place} selector": each["selector"]["matchLabels"].keys() <= {"os", "arch"},
        }
    return [rule for rule, holds in rules.items() if not holds]


def test_a_release_that_was_changed_is_neither_published_nor_bundled(tmp_path):
    files.make_lists(tmp_path)
    files.write_sums(tmp_path)
    program = (sys.executable, "-m", "tools.release")
    lacking = done(*program, "bundle", tmp_path, PYTHONPATH=str(ROOT))
    assert lacking.returncode == 1
    assert f"lacks {', '.join(sorted([*files.IMAGES, *files.BILLS.values()]))}; run" in lacking.stderr
    (tmp_path / "images.txt").write_text("somebody.example/else:1\n")
    changed = done(*program, "bundle", tmp_path, PYTHONPATH=str(ROOT))
    assert (changed.returncode, "not as the release was made: images.txt" in changed.stderr) == (1, True)
    scheme = done(*program, "publish", tmp_path, "--registry", "https://r.example", PYTHONPATH=str(ROOT))
    assert (scheme.returncode, "got 'https://r.example'" in scheme.stderr) == (1, True)
    none = done(*program, "bundle", tmp_path / "crds", PYTHONPATH=str(ROOT))
    assert (none.returncode, "holds no release" in none.stderr) == (1, True)


@OF_WHEEL
def test_a_release_s_bill_lists_what_the_wheel_brings_and_misses_nothing_that_is_asked_for(tmp_path):
    files.make_operator_bill(tmp_path, WHEEL / "bin" / "python")
    (bill,) = tmp_path.iterdir()
    listed = {each["name"]: each["version"] for each in json.loads(bill.read_text())["components"]}
    assert {name: listed[name] for name in ("kopf", "pydantic")} == {
        name: pins("common.txt")[name] for name in ("kopf", "pydantic")
    }
    assert not {"torch", "vllm", "deepspeed"} & listed.keys()
    with pytest.raises(SystemExit, match="lacks kopf, torch"):
        files.check_bill(bill, {"kopf": "0", "torch": "1", "pydantic": listed["pydantic"]})


def make_in(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return done(sys.executable, "-m", "tools.release", "make", folder, PYTHONPATH=str(ROOT), **environment)


def test_a_release_overwrites_nothing_but_a_release(tmp_path):
    (tmp_path / "thesis.txt").touch()
    refused = make_in(tmp_path)
    assert (refused.returncode, "is there and no release" in refused.stderr) == (1, True)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("named", ["", "python:3.11-slim-bookworm", f"python@sha256:{'a' * 63}"])
def test_a_release_starts_from_an_image_that_nobody_moves(tmp_path, named):
    refused = make_in(tmp_path / "dist", BASE_IMAGE=named)
    assert refused.returncode == 1
    assert re.search(rf"must name the image .* by its digest, .*; got '{named}'", refused.stderr)
    assert not (tmp_path / "dist").exists()


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"python@sha256:{'a' * 64}"
    monkeypatch.setenv("BASE_IMAGE", name)
    return name


def as_builder(folder: Path, script: str) -> None:
    """Puts a program of that name on an otherwise empty PATH, in place of the machine's builders of images."""
    (folder / "buildah").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "buildah").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("", "no buildah here; no podman here; no docker here"),
        (
            "echo cannot connect to its daemon >&2; exit 1",
            "`buildah info` failed: cannot connect to its daemon",
        ),
        ('[ "$1" = info ] || { echo no such host >&2; exit 125; }', "failed with 125: no such host"),
    ],
    ids=["no builder", "no daemon", "no registry"],
)
def test_a_release_says_which_images_it_lacks_and_how_to_build_them(
    base, tmp_path, monkeypatch, capsys, script, reason
):
    """All other parts of it are in place by then."""
    if script:
        as_builder(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = tmp_path / "dist"
    made.mkdir()
    (made / "SHA256SUMS").touch()
    with pytest.raises(SystemExit) as ended:
        release.finish(made)
    assert f"release {steps.VERSION}, checked, in {made}: SHA256SUMS" in capsys.readouterr().out
    for image, arguments in {"operator": "", "trainer": "--build-arg=ENGINE=gpu "}.items():
        name = f"rlhf-{image}:{steps.VERSION}"
        assert re.search(rf"{name}: .*{re.escape(reason)}", str(ended.value))
        command = f"docker build --target={image} {arguments}--tag={name} --build-arg=BASE_IMAGE={base} ."
        assert command in str(ended.value)


def test_a_release_checks_the_images_that_it_builds(base, tmp_path, monkeypatch, capsys):
    other = f"--build-arg=BASE_IMAGE={base}"
    index = {"manifests": [{"digest": "d", "annotations": {REFERENCE: image}} for image in files.IMAGES]}
    script = f"""case "$1 $*" in
    run*) echo {steps.VERSION};;
    build*{other}*) ;;
    build*) exit 1;;
    manifest*) echo '{json.dumps(index)}' >{tmp_path}/images/index.json;;
    esac"""
    as_builder(tmp_path, script)
    (tmp_path / "images").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    release.finish(tmp_path)
    assert f"images, checked: {', '.join(files.IMAGES)}" in capsys.readouterr().out
    as_builder(tmp_path, '[ "$1" != run ] || echo 0.0.1')
    with pytest.raises(SystemExit, match=r"rlhf-operator:.*: it has version 0\.0\.1"):
        release.finish(tmp_path)
