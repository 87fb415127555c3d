"""Modules that are programs."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_program_begins_once_all_of_its_module_is_defined():
    """Names defined below `if __name__ == "__main__":` are not there yet for the functions that it calls."""
    early = []
    for folder in ("operator", "trainer_image", "tests", "benchmarks", "examples"):
        for file in (ROOT / folder).rglob("*.py"):
            statements = ast.parse(file.read_text()).body
            begins = [
                place
                for place, statement in enumerate(statements)
                if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
            ]
            if begins and begins[-1] < len(statements) - 1:
                early.append(str(file.relative_to(ROOT)))
    assert early == []
