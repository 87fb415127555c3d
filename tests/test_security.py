"""SECURITY.md: each test that it names exists, and each sentence of what holds has one."""

import re
from pathlib import Path

import pytest
from tests.test_others_bugs import NAMED, functions

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()
FILES = re.compile(r"`(tests/[\w/]+\.py)(?:::\w+)?`")


def claims() -> list[str]:
    """Rows of the table of sentences."""
    table = PAGE.partition("| what holds | shown by |\n| --- | --- |\n")[2].partition("\n\n")[0]
    return table.splitlines()


@pytest.mark.parametrize("row", claims(), ids=lambda row: row[2:60])
def test_each_sentence_names_tests_that_exist(row: str):
    named = NAMED.findall(row.rpartition(" | ")[2])
    assert named, "names no test"
    assert not [f"{file}::{name}" for file, name in named if name not in functions(file)]


def test_the_page_names_no_file_that_is_not_there():
    assert len(claims()) >= 10
    assert not [file for file in FILES.findall(PAGE) if not (ROOT / file).is_file()]
