"""`make test`: its parts run to their end and are reported together."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = re.findall(r"^([A-Z0-9_]+) := (tests/.*)", (ROOT / "Makefile").read_text(), flags=re.M)
TESTS = {
    part.lower().replace("_", "-"): paths.split() for part, paths in LISTS if part not in ("GPU", "QUICK")
} | {"trainer": ["tests/any-other"]}
UNITS, OPERATOR, JOBS, EPISODES = (len(TESTS[part]) for part in ("units", "operator", "jobs", "episodes"))
PASSES = "import sys\ndef test_it():\n    assert not sys.dont_write_bytecode\n"
FAILS = "import pytest\n@pytest.mark.skip\ndef test_later(): ...\ndef test_it():\n    assert False\n"
DIES = "import os\ndef test_it():\n    os._exit(0)\n"
LEAVES = (
    "import pytest\ndef test_first(): ...\ndef test_it():\n    pytest.exit('enough')\ndef test_last(): ...\n"
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """With this project's Makefile and tools, small tests in each part, and an environment that is installed."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'
    )
    for path in (path for paths in TESTS.values() for path in paths):
        write_test(tmp_path, path, PASSES)
    (tmp_path / "page").mkdir()
    page = tmp_path / "operator" / "rlhf_operator" / "page" / "static" / "index.html"
    page.parent.mkdir(parents=True)
    page.touch()
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("ruff", "mypy", "lint-imports", "helm", "promtool"):
        write_program(programs / name, "true")
    write_program(programs / "python", f'exec {sys.executable} "$@"')
    for name in (".venv-operator", ".venv-verifiers"):
        (tmp_path / name).mkdir()
    shutil.copytree(ROOT / "constraints", tmp_path / "constraints")
    for stamp in (".installed", ".openenv", ".reasoning-gym", ".textarena"):
        (tmp_path / ".venv" / stamp).touch()
    return tmp_path


def write_test(clone: Path, path: str, text: str) -> None:
    """In a folder or a file as the Makefile names them."""
    file = clone / path if path.endswith(".py") else clone / path / "test_it.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_program(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


def make_test(clone: Path) -> tuple[int, list[str]]:
    """Its exit code, and the table that it ends with, without times."""
    # As from a shell: where this test itself runs under `make`, that one's options are not meant.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST"))
    }
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take a while to load
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # make takes it away
    done = subprocess.run(
        ["make", "test"], cwd=clone, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    _, _, table = done.stdout.partition("skipped\n")
    return done.returncode, [re.sub(r"\s+(\d+:\d\d)?\s*", " ", line) for line in table.splitlines()]


def test_all_parts_pass(clone):
    assert make_test(clone) == (
        0,
        [
            "e2e passed 1 0 0",
            "examples passed 1 0 0",
            f"operator passed {OPERATOR} 0 0",
            "chaos passed 1 0 0",
            f"jobs passed {JOBS} 0 0",
            "trainer passed 1 0 0",
            f"episodes passed {EPISODES} 0 0",
            "weights passed 1 0 0",
            f"units passed {UNITS} 0 0",
            "browser passed 1 0 0",
            "current-api passed 1 0 0",
            "lint passed 0 0 0",
            f"{UNITS + OPERATOR + JOBS + EPISODES + 7} passed, 0 failed, 0 skipped",
            "make gpu: no run is recorded",
        ],
    )


def test_every_part_runs_to_its_end_and_the_failing_ones_are_named(clone):
    write_program(clone / ".venv" / "bin" / "ruff", "exit 1")
    write_test(clone, "tests/unit/api", FAILS)
    write_test(clone, "tests/api_server/oldest", DIES)
    write_test(clone, "tests/cluster/jobs", LEAVES)
    assert make_test(clone) == (
        2,
        [
            "e2e FAILED 2 1 0",
            "examples passed 1 0 0",
            "operator FAILED 0 1 0",
            "chaos passed 1 0 0",
            f"jobs passed {JOBS} 0 0",
            "trainer passed 1 0 0",
            f"episodes passed {EPISODES} 0 0",
            "weights passed 1 0 0",
            f"units FAILED {UNITS - 1} 1 1",
            "browser passed 1 0 0",
            "current-api passed 1 0 0",
            "lint FAILED 0 1 0",
            "FAILED e2e: failed or did not run to its end",
            "FAILED operator: failed or did not run to its end",
            "FAILED units: tests.unit.api.test_it::test_it",
            "FAILED lint: failed or did not run to its end",
            f"{UNITS + JOBS + EPISODES + 7} passed, 4 failed, 1 skipped",
            "make gpu: no run is recorded",
        ],
    )


def test_all_linters_run_and_the_failing_ones_are_named(clone):
    write_program(clone / ".venv" / "bin" / "ruff", "exit 1")
    write_program(clone / ".venv" / "bin" / "lint-imports", "echo broken; exit 1")
    done = subprocess.run(
        ["make", "lint"], cwd=clone, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2
    assert "broken" in done.stdout
    assert "error: failed: ruff check ., ruff format --check ., lint-imports" in done.stderr


@pytest.mark.parametrize(("engine", "hints_index"), [("cpu", True), ("gpu", False)])
def test_an_installation_that_finds_no_torch_for_cpus_says_what_to_set(clone, engine, hints_index):
    """pip itself complains of versions that conflict."""
    programs = clone / ".venv" / "bin"
    (clone / ".venv" / ".installed").unlink()
    write_program(clone / "python3", f'[ "$1" = -m ] || exec {sys.executable} "$@"')
    write_program(programs / "python", "true")
    write_program(programs / "pip", "exit 1")
    command = ["make", f"PYTHON={clone / 'python3'}", f"ENGINE={engine}", "install"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert ("PIP_EXTRA_INDEX_URL" in done.stderr) is hints_index, done.stderr
