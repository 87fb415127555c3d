"""Manifests that a function makes."""

import re
from pathlib import Path

import pytest
from tests.api.manifests import document

from rlhf_api.manifest import load
from rlhf_api.problems import InvalidJob
from rlhf_operator import cli

MODULE = f"""
MADE = {document()!r}
def ppo(): return MADE
def nothing(): return "ppo"
def broken(): raise KeyError("learning rate")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiments_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_it_is_read_and_overridden_like_a_file(capsys):
    made = load(Path("experiments_of_a_test:ppo"), ["steps=9", "ppo.klCoefficient=0.2"])
    assert (made.metadata.name, made.spec.steps, made.spec.ppo.kl_coefficient) == ("job", 9, 0.2)
    assert cli.main(["render", "experiments_of_a_test:ppo", "steps=9"]) == 0
    assert "steps: 9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "must return a manifest as a dict; got 'ppo'"),
        ("broken", "makes no manifest: KeyError: 'learning rate'"),
        ("missing", "makes no manifest: AttributeError: module 'experiments_of_a_test' has no attribute"),
    ],
)
def test_a_function_that_makes_none(name: str, said: str):
    with pytest.raises(InvalidJob, match=re.escape(f"experiments_of_a_test:{name}: {said}")):
        load(Path(f"experiments_of_a_test:{name}"))


def test_a_file_of_such_a_name_is_a_file(tmp_path: Path):
    (tmp_path / "a:b").write_text("- no object")
    with pytest.raises(InvalidJob, match="must be one RLHFJob object"):
        load(Path("a:b"))
