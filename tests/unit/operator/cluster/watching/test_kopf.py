"""kopf is used by its public names, in one module, in the minor release that was tested."""

import ast
import tomllib
from importlib.metadata import version
from pathlib import Path

import kopf

ROOT = Path(__file__).parents[5]
OPERATOR = ROOT / "operator" / "rlhf_operator"


def imported(source: Path) -> set[str]:
    """Names of the modules that a module imports."""
    modules = set[str]()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module or "")
    return modules


def test_one_module_imports_it_and_no_part_of_it() -> None:
    importing = {
        source.name: names
        for source in OPERATOR.rglob("*.py")
        if (names := {name for name in imported(source) if name.partition(".")[0] == "kopf"})
    }
    assert importing == {"watch.py": {"kopf"}}


def test_every_name_is_public() -> None:
    tree = ast.parse((OPERATOR / "cluster" / "watching" / "watch.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kopf"
    }
    assert {"operator", "on"} <= used <= {*kopf.__all__}


def test_its_version_is_bound_to_the_minor_release_that_is_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    major, minor, *_ = version("kopf").split(".")
    assert f"kopf>={major}.{minor},<{major}.{int(minor) + 1}" in extras["operator"]
