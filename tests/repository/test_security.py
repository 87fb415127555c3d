"""SECURITY.md: each row of what holds names tests, which exist; and our code unpickles and evaluates nothing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.repository.test_others_bugs import NAMED, functions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
FREE = {"Reporting", "What is not kept apart"}
"""Sections that promise nothing."""


def tables() -> Iterator[tuple[str, list[str]]]:
    """Head and rows of each table."""
    for lines in re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.M):
        head, _, *rows = lines.splitlines()
        yield head, rows


@pytest.mark.parametrize("row", [row for _, rows in tables() for row in rows], ids=lambda row: row[2:60])
def test_each_row_names_tests_that_exist(row: str):
    named = NAMED.findall(row.rpartition(" | ")[2])
    assert named, "names no test"
    assert not [f"{file}::{name}" for file, name in named if name not in functions(file)]


def test_each_section_has_a_table_of_what_holds_or_promises_nothing():
    assert all(head.endswith("| shown by |") for head, _ in tables())
    sections = re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, flags=re.M)
    assert len(sections) > 6
    assert {title for title, text in sections if "| shown by |" not in text} == FREE
    prose = "".join(line for line in PAGE.splitlines(keepends=True) if not line.startswith("|"))
    assert "tests/" not in prose, "a sentence that a test shows is a row"


EVALUATES = {"eval", "exec", "compile", "__import__"}
PICKLES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def dangerous(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.partition(".")[0] in PICKLES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PICKLES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            shell = any(each.arg == "shell" for each in node.keywords)
            if called in EVALUATES or shell or called in ("os.system", "os.popen", "yaml.load", "torch.load"):
                yield called


def test_our_code_unpickles_and_evaluates_nothing():
    files = [file for folder in ("operator", "trainer_image") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    calls_by_file = {str(file.relative_to(ROOT)): [*dangerous(ast.parse(file.read_text()))] for file in files}
    assert {file: calls for file, calls in calls_by_file.items() if calls} == {}
    tried = (
        "import pickle\nfrom dill import loads\neval('1')\nsubprocess.run('a', shell=True)\nos.system('a')"
    )
    assert len([*dangerous(ast.parse(tried))]) == 5
