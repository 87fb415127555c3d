"""Installation: the wheel works without a clone and without torch, and each engine's pins resolve."""

import json
import re
import shutil
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from tests.support.sources.packaging import OF_WHEEL, ROOT, WHEEL, done, normalized, pins
from tools.release.files import NOT_IN_IMAGES

from rlhf_operator.local.processes.process import MALLOC

PAGE = ROOT / "operator" / "rlhf_operator" / "page" / "static" / "index.html"
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
    assert "suspend" in done(WHEEL / "bin" / "kubectl_complete-rlhf", "sus").stdout
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
        tag
        for page in pages
        for tag in re.findall(r"rlhf-(?:operator|trainer|environment):(\d[\w.]*)", page.read_text())
    ]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert newest is not None
    assert tags
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {chart["version"], chart["appVersion"], newest[1], *tags} == {project["version"]}


@pytest.mark.parametrize(
    ("name", "constraints", "extras"),
    [
        ("operator", "common.txt", ("operator",)),
        ("gpu", "gpu.txt", ("trainer", "gpu")),
        ("build", "common.txt", ()),
    ],
)
def test_images_install_by_hash_what_is_pinned(name, constraints, extras):
    """Pip tells whether anything is missing as it builds the image: with one hash it asks for all."""
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


def test_the_operators_image_has_the_client_of_stores_and_no_reader_of_episodes():
    """The page of a cluster parses nothing of others by libraries in C++."""
    files = [ROOT / "constraints" / f"{name}-hashes.txt" for name in ("operator", "page")]
    assert all(
        f"-r /requirements/constraints/{file.name}" in (ROOT / "Dockerfile").read_text() for file in files
    )
    installed = {
        name: version
        for file in files
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", file.read_text(), re.M)
    }
    assert installed["obstore"] == pins("common.txt")["obstore"]
    assert not {"pyarrow", "tokenizers", "torch"} & set(installed)


def test_images_and_tests_keep_freed_memory_as_local_runs_do():
    dockerfile, makefile = ((ROOT / name).read_text() for name in ("Dockerfile", "Makefile"))
    for name, value in MALLOC.items():
        assert f" {name}={value}" in dockerfile
        assert f"export {name}={value}\n" in makefile


def test_the_image_of_environments_installs_what_is_pinned():
    """Pip refuses what contradicts a pin; of common.txt the image takes what verifiers does without."""
    docker, pinned = (ROOT / "Dockerfile").read_text(), pins("verifiers.txt")
    stage = docker.partition("AS environment\n")[2]
    assert "-r constraints/verifiers.txt" in stage
    pinned |= {name: pins("common.txt")[name] for name in re.findall(r'"\$\(grep \^(\w+)== ', stage)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["environment"]]
    assert {normalized(re.match(r"[\w.-]+", each)[0]) for each in needs} <= pinned.keys()


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
def test_torchvision_stays_where_vllm_needs_it(engine, stays):
    """vLLM's build for GPUs does not start without it: its warm-up imports a model with images. Its build for CPUs
    does."""
    planned = done(
        "make", "--dry-run", "--always-make", "--directory", ROOT, f"ENGINE={engine}", "install"
    ).stdout
    (line,) = re.findall(r"pip uninstall .*--yes (.*)", planned)
    taken = set(line.split()) - {"rfc3987-syntax"}  # of the tests' own packages
    assert {"torchaudio", "torchcodec"} <= taken
    assert ("torchvision" not in taken) is stays
    assert ("torchvision" not in NOT_IN_IMAGES[engine]) is stays
    assert taken <= NOT_IN_IMAGES[engine]


def test_the_docs_take_away_with_a_wheel_what_make_takes_away():
    """Otherwise an environment made as they say cannot import transformers."""
    make = re.search(r"^UNUSED := rfc3987-syntax (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    docs = re.search(
        r"whl\[operator,trainer,cpu\]'\npip uninstall --yes ([\w ]+?) +#",
        (ROOT / "docs" / "guides" / "clusters" / "cluster.md").read_text(),
    )
    assert make is not None
    assert docs is not None
    assert set(docs[1].split()) == set(re.findall(r"torch\w+", make[1]))


@OF_WHEEL
@pytest.mark.skipif(not PAGE.exists(), reason="`make page` builds the page")
def test_the_wheel_has_the_page():
    (wheel,) = WHEEL.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"rlhf_operator/page/static/{file.name}" for file in PAGE.parent.iterdir()} <= names
