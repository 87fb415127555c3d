"""Users' code imports two modules: their names are these and documented, and examples and docs import no others."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "extending.md"
NAMES = {
    "rlhf_api": {
        *("Algorithm", "CommonSpec", "Frozen", "Problem", "Spec"),
        *("Compute", "Dataset", "Generate", "Graph", "Infer", "Score", "Train"),
        *("CRITIC", "POLICY", "REFERENCE", "SEQUENCES"),
        *("DPO", "PPO", "PolicyGradient"),
        *("Fraction", "NonNegativeFloat", "Positive", "PositiveFloat"),
    },
    "rlhf_trainer.extend": {
        *("Columns", "ComputeFn", "Loss", "LossFn", "MicroBatch", "OpContext", "Sequences"),
        *("pad", "response_mask", "sequence_sums", "to_tokens"),
        *("EpisodeReplayBuffer", "Ran", "Run", "Step", "Tracker", "run_in_sandbox"),
        *("EpisodeSandbox", "SandboxExhausted", "SandboxLost", "open_sandbox"),
    },
}
"""A name that goes breaks the code of users."""


def python_of_users() -> list[tuple[str, str]]:
    """Name and text of each example's module and of each block of Python on a page."""
    files = [(str(file.relative_to(ROOT)), file.read_text()) for file in (ROOT / "examples").rglob("*.py")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    blocks = (
        (page.name, block)
        for page in pages
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    )
    return [*files, *blocks]


@pytest.mark.parametrize("module", NAMES)
def test_a_face_has_the_documented_names_and_no_others(module):
    assert set(importlib.import_module(module).__all__) == NAMES[module]
    section = PAGE.read_text().partition(f"**`{module}`**")[2].partition("**`")[0]
    first_cells = " ".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    others = re.findall(r"`(\w+)`", section.partition("| `Frozen` |")[2].partition("\n")[0])
    assert {*re.findall(r"`(\w+)`", first_cells), *others} == NAMES[module]


@pytest.mark.parametrize("module", NAMES)
def test_every_name_of_a_face_can_be_imported(module):
    face = importlib.import_module(module)
    assert all(getattr(face, name) is not None for name in NAMES[module])
    with pytest.raises(AttributeError, match="'absent'"):
        _ = face.absent


def test_static_types_of_the_contracts_face_are_its_names():
    tree = ast.parse((ROOT / "operator" / "rlhf_api" / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == NAMES["rlhf_api"]


def test_the_contracts_face_imports_no_torch():
    names = ", ".join(sorted(NAMES["rlhf_api"]))
    code = f"import sys; from rlhf_api import {names}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_examples_and_docs_import_nothing_else_of_the_package():
    for where, text in python_of_users():
        for node in ast.walk(ast.parse(text)):
            imported = (
                {node.module: {alias.name for alias in node.names}}
                if isinstance(node, ast.ImportFrom) and node.module
                else {
                    alias.name: set() for alias in getattr(node, "names", ()) if isinstance(node, ast.Import)
                }
            )
            for module, names in imported.items():
                if module.startswith("rlhf_"):
                    assert module in NAMES, f"{where}: {module}"
                    assert names <= NAMES[module], f"{where}: {module}"
