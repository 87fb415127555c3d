"""docs/reference/others-bugs.md: each test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def claims() -> list[str]:
    """Rows of reports, without headings and those that are not shown here."""
    heads = ("| reported |", "| --- |")
    page = (ROOT / "docs" / "reference" / "others-bugs.md").read_text().partition("## Not shown here")[0]
    return [line for line in page.splitlines() if line.startswith("| ") and not line.startswith(heads)]


@pytest.mark.parametrize("row", claims(), ids=lambda row: row.split("|")[1].strip())
def test_each_report_names_tests_that_exist(row: str):
    named = NAMED.findall(row)
    assert named, "names no test"
    assert not [f"{file}::{name}" for file, name in named if name not in functions(file)]


def test_reports_are_many_and_none_is_there_twice():
    reports = [row.split("|")[1] for row in claims()]
    assert len(reports) > 40
    assert len(set(reports)) == len(reports)
