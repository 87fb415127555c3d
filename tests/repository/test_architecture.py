"""docs/concepts/architecture.md: its picture and folders are those of the contracts that import-linter checks."""

import re
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.sources.scripts import load_script

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "concepts" / "architecture.md").read_text()
SCRIPT = ROOT / "tools" / "make_architecture_picture.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPT)


def test_the_picture_is_of_the_floors_and_imports_there_are(script: ModuleType):
    assert script.filled(TEXT) == TEXT, f"run {SCRIPT.relative_to(ROOT)}"


@pytest.mark.parametrize("package", re.findall(r"^### `([\w.]+)`$", TEXT, flags=re.M))
def test_a_table_has_the_floors_of_its_package(script: ModuleType, package: str):
    table = TEXT.partition(f"### `{package}`\n")[2].partition("\n### ")[0]
    rows = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| (`.*?) \|", table, flags=re.M)]
    assert [set(row) for row in rows] == [set(floor) for floor in script.floors(package)]


def test_every_package_has_a_table(script: ModuleType):
    assert [package for package in script.PACKAGES if f"### `{package}`\n" not in TEXT] == []


def test_a_step_goes_through_folders_of_the_trainer(script: ModuleType):
    step = TEXT.partition("## A step's data")[2].partition("```\n")[0]
    folders = {name for floor in script.floors("rlhf_trainer") for name in floor}
    assert set(re.findall(r"<b>(\w+)</b>", step)) - folders == {"rlhf_store"}
