"""Benchmarks import what the code has, as they are started: with their own folder in front of the path."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("rlhf", "rlhf_api", "rlhf_store", "rlhf_operator", "rlhf_trainer", "tests")


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Modules of ours, with the names taken from them."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda file: file.stem)
def test_imports_exist(file: Path) -> None:
    for module, name in imports(file):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")
    if any(module.startswith("tests") for module, _ in imports(file)):
        assert "sys.path.insert(0, str(Path(__file__).parents[2]))" in file.read_text(), "for tests"
