"""How it is installed: either engine's pins go together, and the operator's extra stands alone."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OPERATOR_PYTHON = ROOT / ".venv-operator" / "bin" / "python"

IMPORTS = """
import importlib.util, pkgutil, rlhf_api, rlhf_operator
for package in (rlhf_api, rlhf_operator):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
for absent in ("torch", "numpy", "transformers", "vllm", "deepspeed"):
    assert importlib.util.find_spec(absent) is None, absent
"""


@pytest.mark.skipif(not OPERATOR_PYTHON.exists(), reason="`make test` makes this environment")
def test_the_operator_extra_imports_without_torch(tmp_path):
    subprocess.run([OPERATOR_PYTHON, "-c", IMPORTS], check=True, cwd=tmp_path)


def pins(name: str) -> dict[str, str]:
    """Versions by normalized name that one of the constraints files sets, with those it includes."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints" / name).read_text().splitlines():
        if line.startswith("-c "):
            found |= pins(line.removeprefix("-c "))
        elif line and not line.startswith("#"):
            package, _, wanted = line.partition("==")
            assert normalized(package) not in found, f"{package} is pinned twice"
            found[normalized(package)] = wanted
    return found


def normalized(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


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
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0 and "connection broken by" in done.stderr:
        pytest.skip("no package registry can be reached")
    assert done.returncode == 0, done.stderr
    packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    found = {normalized(each["name"]): each["version"].partition("+")[0] for each in packages}
    del found["rlhf-operator"]
    assert found == {name: pinned.get(name, "not pinned") for name in found}
