"""Installation: the wheel works without a clone and without torch, and each engine's pins resolve."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WHEEL = ROOT / ".venv-operator"
"""An environment with the wheel and the operator's extra, and nothing of this clone."""
OF_WHEEL = pytest.mark.skipif(not WHEEL.exists(), reason="`make .venv-operator` makes this environment")

IMPORTS = """
import importlib.util, pkgutil, sys, rlhf, rlhf_api, rlhf_operator, rlhf_store
for package in (rlhf, rlhf_api, rlhf_store, rlhf_operator):
    assert package.__file__.startswith(sys.prefix), package
for package in (rlhf, rlhf_api, rlhf_operator):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
for absent in ("torch", "numpy", "transformers", "vllm", "deepspeed"):
    assert importlib.util.find_spec(absent) is None, absent
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present directory, outside of this clone: `job.yaml` with the data that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    example = "examples/sentiment"
    shutil.copytree(ROOT / example, tmp_path / example)
    manifest = yaml.safe_load((tmp_path / example / "sft.yaml").read_text())
    manifest["spec"] |= {"steps": 1, "optimizer": {"learningRate": 3e-3}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    return tmp_path


def done(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=900, check=False
    )


@OF_WHEEL
@pytest.mark.usefixtures("elsewhere")
def test_the_operator_extra_imports_without_torch():
    imported = done(WHEEL / "bin" / "python", "-c", IMPORTS)
    assert imported.returncode == 0, imported.stderr


@OF_WHEEL
@pytest.mark.usefixtures("elsewhere")
def test_the_wheels_commands_need_no_clone():
    for program in ("rlhf", "kubectl-rlhf"):
        assert done(WHEEL / "bin" / program, "--help").returncode == 0
    valid = done(WHEEL / "bin" / "rlhf", "validate", "job.yaml")
    assert (valid.returncode, valid.stderr) == (0, "")
    assert "job.yaml is valid: sft, sft, 1 steps on trainer x 1" in valid.stdout
    own = ("model.policy=org/policy", "data.train=[examples/sentiment/sft.jsonl]", "steps=1")
    assert done(WHEEL / "bin" / "rlhf", "validate", "sft", *own).stdout.startswith(
        "sft is valid: sft, sft, 1 "
    )
    untrained = done(WHEEL / "bin" / "rlhf", "run", "job.yaml")
    assert untrained.returncode == 1
    assert "ModuleNotFoundError: No module named" in untrained.stderr  # the trainer's extra is not there


@pytest.fixture
def installed(elsewhere: Path) -> Path:
    """Programs of an environment with the wheel. What it depends on is this environment's: a `.pth` file adds these
    packages, but not this clone, since Python reads no `.pth` file of a folder that one has added."""
    environment = elsewhere / "environment"
    (wheel,) = WHEEL.glob("*.whl")
    venv.create(environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", environment, "install", "--no-deps", "--no-index")
    brought = done(*pip, wheel)
    assert brought.returncode == 0, brought.stderr
    return environment / "bin"


@OF_WHEEL
@pytest.mark.slow
def test_the_wheel_runs_a_manifest_elsewhere(elsewhere, installed):
    finished = done(installed / "rlhf", "run", "job.yaml", "--workdir", "out")
    assert finished.returncode == 0, finished.stderr
    assert (elsewhere / "out" / "policy" / "config.json").is_file()


def test_there_is_one_version():
    """Wheel, chart, images, docs and change log name the same version."""
    chart = yaml.safe_load((ROOT / "charts" / "rlhf-operator" / "Chart.yaml").read_text())
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "charts" / "rlhf-operator" / "README.md"]
    tags = [
        tag for page in pages for tag in re.findall(r"rlhf-(?:operator|trainer):(\d[\w.]*)", page.read_text())
    ]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert newest is not None
    assert tags
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {chart["version"], chart["appVersion"], newest[1], *tags} == {project["version"]}


@pytest.fixture
def release() -> ModuleType:
    """tools/release, of which `make release` runs all."""
    loader = SourceFileLoader("release", str(ROOT / "tools" / "release"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_a_release_has_the_chart_of_its_version(release, tmp_path):
    release.make_chart(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [f"rlhf-operator-{release.VERSION}.tgz"]


@OF_WHEEL
def test_a_release_s_bill_lists_what_the_wheel_brings_and_misses_nothing_that_is_asked_for(release, tmp_path):
    release.make_operator_bill(tmp_path, WHEEL / "bin" / "python")
    (bill,) = tmp_path.iterdir()
    listed = {each["name"]: each["version"] for each in json.loads(bill.read_text())["components"]}
    assert {name: listed[name] for name in ("kopf", "pydantic")} == {
        name: pins("common.txt")[name] for name in ("kopf", "pydantic")
    }
    assert not {"torch", "vllm", "deepspeed"} & listed.keys()
    with pytest.raises(SystemExit, match="lacks kopf, torch"):
        release.check_bill(bill, {"kopf": "0", "torch": "1", "pydantic": listed["pydantic"]})


def test_a_release_overwrites_nothing_but_a_release(tmp_path):
    (tmp_path / "thesis.txt").touch()
    refused = done(sys.executable, ROOT / "tools" / "release", tmp_path)
    assert (refused.returncode, "is there and no release" in refused.stderr) == (1, True)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("named", ["", "python:3.11-slim-bookworm", f"python@sha256:{'a' * 63}"])
def test_a_release_starts_from_an_image_that_nobody_moves(tmp_path, named):
    refused = done(sys.executable, ROOT / "tools" / "release", tmp_path / "dist", BASE_IMAGE=named)
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
    release, base, tmp_path, monkeypatch, capsys, script, reason
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
    assert f"release {release.VERSION}, checked, in {made}: SHA256SUMS" in capsys.readouterr().out
    for image, arguments in {"operator": "", "trainer": "--build-arg=ENGINE=gpu "}.items():
        name = f"rlhf-{image}:{release.VERSION}"
        assert re.search(rf"{name}: .*{re.escape(reason)}", str(ended.value))
        command = f"docker build --target={image} --tag={name} {arguments}--build-arg=BASE_IMAGE={base} ."
        assert command in str(ended.value)


def test_a_release_checks_the_images_that_it_builds(release, base, tmp_path, monkeypatch, capsys):
    other = f"--build-arg=BASE_IMAGE={base}"
    script = f'case "$1 $*" in run*) echo {release.VERSION};; build*{other}*) ;; build*) exit 1;; esac'
    as_builder(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    release.finish(tmp_path)
    images = f"rlhf-operator:{release.VERSION}, rlhf-trainer:{release.VERSION}"
    assert f"images, checked: {images}" in capsys.readouterr().out
    as_builder(tmp_path, '[ "$1" != run ] || echo 0.0.1')
    with pytest.raises(SystemExit, match=r"rlhf-operator:.*: it has version 0\.0\.1"):
        release.finish(tmp_path)


def pins(name: str) -> dict[str, str]:
    """Versions by normalized name that one of the constraints files sets, with those it includes."""
    versions: dict[str, str] = {}
    for line in (ROOT / "constraints" / name).read_text().splitlines():
        if line.startswith("-c "):
            versions |= pins(line.removeprefix("-c "))
        elif line and not line.startswith("#"):
            package, _, pinned_version = line.partition("==")
            assert normalized(package) not in versions, f"{package} is pinned twice"
            versions[normalized(package)] = pinned_version
    return versions


def normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


@pytest.mark.parametrize(
    ("name", "constraints", "extras"),
    [
        ("operator", "common.txt", ("operator",)),
        ("gpu", "gpu.txt", ("trainer", "gpu")),
        ("build", "common.txt", ()),
    ],
)
def test_images_install_by_hash_what_is_pinned(name, constraints, extras):
    """Whether nothing is missing, pip says as it builds the image: with one hash it asks for all."""
    installed = rf"pip install --quiet --require-hashes -r \S*constraints/{name}-hashes\.txt"
    assert re.search(installed, (ROOT / "Dockerfile").read_text())
    text = (ROOT / "constraints" / f"{name}-hashes.txt").read_text()
    entries = re.findall(
        r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, flags=re.M
    )
    pinned = pins(constraints)
    assert {(package, pinned_version) for package, pinned_version, _ in entries} == {
        (package, pinned.get(normalized(package))) for package, _, _ in entries
    }
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, requirements = document["project"], document["build-system"]["requires"]
    if extras:
        requirements = [
            *project["dependencies"],
            *(one for each in extras for one in project["optional-dependencies"][each]),
        ]
    named = {normalized(re.match(r"[\w.-]+", each)[0]) for each in requirements}
    assert named <= {normalized(package) for package, _, _ in entries}
    assert len(re.findall("^[a-z].*==", text, flags=re.M)) == len(entries)


def test_an_index_beside_pypi_gives_torch_alone_and_stays_in_no_image():
    """Its URL may have a password, which the history of an image keeps of an argument."""
    docker = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^ARG (\w+)", docker, flags=re.M) == ["BASE_IMAGE", "ENGINE"]
    install = re.search(r"^RUN --mount=type=secret,id=torch-index (.*?)\n[A-Z#]", docker, flags=re.M | re.S)[
        1
    ]
    within, _, after = install.partition('pip install --quiet --no-deps "$torch")')
    assert "PIP_EXTRA_INDEX_URL" in within
    assert "PIP_EXTRA_INDEX_URL" not in after
    planned = done("make", "--dry-run", "--always-make", "--directory", ROOT, "ENGINE=cpu", "install").stdout
    installs = [line for line in planned.splitlines() if "pip install" in line and "--constraint" not in line]
    assert [line.partition("torch==")[2].split()[0] for line in installs if "torch==" in line] == [
        "2.13.0+cpu"
    ]
    assert re.search(r"env -u PIP_EXTRA_INDEX_URL \S+pip install .*--constraint constraints/cpu.txt", planned)


# Of a GPU's torch there is only PyPI's build, which wants CUDA's libraries and its own triton; `===` takes no other.
@pytest.mark.parametrize(("engine", "torch"), [("cpu", "=="), ("gpu", "===")])
@pytest.mark.skipif(
    int(version("pip").partition(".")[0]) < 26, reason="older pips download what they resolve"
)
def test_an_engine_resolves_to_what_its_constraints_pin(engine, torch, tmp_path):
    pinned = pins(f"{engine}.txt")
    report = tmp_path / "report.json"
    # What is installed already is not looked up again; of the rest, only metadata is read.
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--retries=1"]
    command += ["--use-feature=fast-deps", f"--report={report}"]
    command += [f"--constraint={ROOT / 'constraints' / engine}.txt", f"torch{torch}{pinned['torch']}"]
    command += [f"{ROOT}[operator,trainer,{engine},dev]"]
    resolved = done(*command)
    if resolved.returncode != 0 and "connection broken by" in resolved.stderr:
        pytest.skip("no package registry can be reached")
    assert resolved.returncode == 0, resolved.stderr
    packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    versions = {normalized(each["name"]): each["version"].partition("+")[0] for each in packages}
    del versions["rlhf-operator"]
    assert versions == {name: pinned.get(name, "not pinned") for name in versions}


@pytest.mark.parametrize(("engine", "stays"), [("cpu", False), ("gpu", True)])
def test_torchvision_stays_where_vllm_needs_it(engine, stays, release):
    """vLLM's build for GPUs does not start without it: its warm-up imports a model with images. Its build for CPUs
    does."""
    planned = done(
        "make", "--dry-run", "--always-make", "--directory", ROOT, f"ENGINE={engine}", "install"
    ).stdout
    (line,) = re.findall(r"pip uninstall .*--yes (.*)", planned)
    taken = set(line.split()) - {"rfc3987-syntax"}  # of the tests' own packages
    assert {"torchaudio", "torchcodec"} <= taken
    assert ("torchvision" not in taken) is stays
    assert ("torchvision" not in release.NOT_IN_IMAGES[engine]) is stays
    assert taken <= release.NOT_IN_IMAGES[engine]


def test_the_docs_take_away_with_a_wheel_what_make_takes_away():
    """Otherwise an environment made as they say cannot import transformers."""
    make = re.search(r"^UNUSED := rfc3987-syntax (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    docs = re.search(
        r"whl\[operator,trainer,cpu\]'\npip uninstall --yes ([\w ]+?) +#",
        (ROOT / "docs" / "guides" / "cluster.md").read_text(),
    )
    assert make is not None
    assert docs is not None
    assert set(docs[1].split()) == set(re.findall(r"torch\w+", make[1]))
