"""Manifests without a file on the command line: experiments by name, and functions."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.unit.api.manifests import GIVEN, document

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import load
from rlhf_operator import cli

MODULE = f"""
MADE = {document()!r}
def ppo(): return MADE
def nothing(): return "ppo"
def talks():
    print("stdout is the manifest's")
    return MADE
def broken(): raise KeyError("learning rate")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiments_of_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


OWN = {"model.policy": "org/policy", "data.train": "[rows.jsonl]", "steps": "10"}
"""Fields that users set in every experiment."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_an_experiment_of_its_name(name: str):
    own = [f"{field}={value}" for field, value in OWN.items()]
    scored = ["model.reward=org/reward"] if name not in GIVEN else []
    taught = ["model.reference=org/teacher"] if name == "distillation" else []
    made = load(Path(name), [*own, *scored, *taught])
    assert (made.spec.algorithm, made.spec.steps) == (name, 10)
    assert made.metadata.name == name.replace("_", "-")


def test_what_is_the_users_is_asked_for_at_once(capsys):
    assert cli.main(["validate", "ppo", "steps=10"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"error: spec.{field}: is required and missing" for field in ("model", "data")]


def test_a_file_in_the_folder_is_an_experiment_of_its_name(tmp_path: Path, capsys):
    (tmp_path / "experiments").mkdir()
    for name, steps in (("my-ppo-1.5b", 7), ("ppo", 8)):
        made = {**document(f"spec.steps={steps}", "spec.ppo.klCoefficient=0"), "metadata": {"name": "mine"}}
        (tmp_path / "experiments" / f"{name}.yaml").write_text(json.dumps(made))
    own = load(Path("my-ppo-1.5b"), ["ppo.klCoefficient=0.2"], trial="test")
    assert (own.metadata.name, own.spec.steps, own.spec.ppo.kl_coefficient) == ("mine-test", 7, 0.2)
    assert load(Path("ppo")).spec.steps == 8, "in place of the algorithm's"
    assert cli.main(["graph", "my-ppo-1.5b"]) == cli.main(["graph", "ppo"]) == 0
    assert "reference" not in capsys.readouterr().out
    assert cli.main(["experiments"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(listed) == {*ALGORITHMS, "my-ppo-1.5b"}
    assert (listed["ppo"], listed["sft"]) == ("experiments/ppo.yaml", "the algorithm as it is by default")


@pytest.mark.parametrize("command", ["validate", "run", "plan", "graph", "render"])
def test_a_name_of_nothing_ends_in_one_error_with_the_names(command: str, capsys):
    assert cli.main([command, "pppo"]) == 2
    assert capsys.readouterr().err == (
        'error: pppo: is neither a file nor an experiment (did you mean "ppo"?); experiments are '
        f"{', '.join(ALGORITHMS)}, and your own experiments/NAME.yaml\n"
    )
    assert cli.main([command, "pppo.yaml"]) == 2
    assert "pppo.yaml: cannot be read: No such file" in capsys.readouterr().err


def test_it_is_read_and_overridden_like_a_file(capsys):
    made = load(Path("experiments_of_a_test:ppo"), ["steps=9", "ppo.klCoefficient=0.2"])
    assert (made.metadata.name, made.spec.steps, made.spec.ppo.kl_coefficient) == ("job", 9, 0.2)
    assert cli.main(["render", "experiments_of_a_test:ppo", "steps=9"]) == 0
    assert "steps: 9" in capsys.readouterr().out


def test_what_a_function_prints_is_no_part_of_the_manifest(capsys):
    assert cli.main(["render", "experiments_of_a_test:talks"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["metadata"]["name"] == "job"
    assert printed.err == "stdout is the manifest's\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "must return a manifest as a dict; got 'ppo'"),
        ("broken", "failed to make a manifest: KeyError: 'learning rate'"),
        (
            "missing",
            "failed to make a manifest: AttributeError: module 'experiments_of_a_test' has no attribute",
        ),
    ],
)
def test_a_function_that_makes_none(name: str, message: str):
    with pytest.raises(InvalidJob, match=re.escape(f"experiments_of_a_test:{name}: {message}")):
        load(Path(f"experiments_of_a_test:{name}"))


def test_a_file_of_such_a_name_is_a_file(tmp_path: Path):
    (tmp_path / "a:b").write_text("- no object")
    with pytest.raises(InvalidJob, match="must be one RLHFJob object"):
        load(Path("a:b"))
