"""The vocabulary of CONTRIBUTING.md: functions are verb and object, and names say what they hold."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "examples", "operator", "tests", "tools", "trainer_image")
BETTER = {
    "asked": "request, requested, questions",
    "found": "what was looked for: match, pods, problems, path",
    "gone": "deleted, dropped, removed",
    "heard": "message, reply",
    "kept": "retained, remainder, or what it is",
    "look": "observation, body, hint; of a function: read_, poll_, check_",
    "looked": "has_read, observation",
    "looks": "observations; of a predicate: is_, has_",
    "said": "message, text, output",
    "seen": "observed, states, or what it is",
    "told": "reported, reply, warned, messages",
    "wanted": "required, expected, requested",
    "why": "reason, problem, message",
}


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each function, parameter, local and private attribute. Public ones may belong to files and
    APIs."""
    fields = {
        id(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        for target in getattr(statement, "targets", [getattr(statement, "target", None)])
    }
    for node in ast.walk(tree):
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar
        ):
            yield node.lineno, node.name or ""
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_name_says_what_it_holds(folder: str):
    denied = [
        f"{file.relative_to(ROOT)}:{line}: {name}; rather {BETTER[name.strip('_')]}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for line, name in names(ast.parse(file.read_text()))
        if name.strip("_") in BETTER
    ]
    assert not denied, "\n".join(["", *denied])
