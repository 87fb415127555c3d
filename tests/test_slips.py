"""What people mistype, in commands and in files, ends in one line that says where, what was seen and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_operator import cli
from rlhf_operator.local.modules import missing
from rlhf_operator.verbs.main import kubectl_main

SPEC: dict[str, Any] = {
    "algorithm": "grpo",
    "steps": 2,
    "model": {"policy": "owner/model"},
    "data": {"train": ["rows.jsonl"]},
    "sampling": {"answersPerPrompt": 2},
    "reward": {"functions": [{"function": "scoring:right"}]},
}
HEAD = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "slips"}}
MODULE = """
import json as parsed
try:
    from fast import score
except ImportError:
    def score(): ...
right = rough = lambda rows: rows
class Judge: ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(json.dumps({**HEAD, "spec": SPEC}))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "one and one"}\n' * 64)
    (tmp_path / "scoring.py").write_text(MODULE)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a refusal prints."""
    assert cli.main(arguments) == 2
    return capsys.readouterr().err


def test_a_function_is_looked_for_in_its_module(here, capsys):
    wrong = 'reward.functions=[{function: "scoring:rihgt"}]'
    assert said(capsys, "validate", "job.yaml", wrong) == (
        f"error: spec.reward.functions[0].function: {here}/scoring.py defines no 'rihgt'; did you mean 'right'?; "
        "got 'scoring:rihgt'\n"
    )
    nowhere = 'trackers=[{kind: "no.where:Tracker"}]'
    assert "spec.trackers[0].kind: no module 'no' in" in said(capsys, "validate", "job.yaml", nowhere)
    assert cli.main(["validate", "job.yaml"]) == 0


@pytest.mark.parametrize("name", ["parsed", "score", "right", "rough", "Judge"])
def test_every_way_to_define_a_name_counts(name):
    assert missing(f"scoring:{name}") == ""


def test_modules_inside_of_packages_are_found_and_not_run(here):
    (here / "mine").mkdir()
    (here / "mine" / "__init__.py").write_text("raise SystemExit('ran')")
    (here / "mine" / "deep.py").write_text("from os.path import *\n")
    assert missing("mine.deep:whatever") == "", "a star may bring any name"
    assert missing("mine.deeper:x") == "no module 'deeper' for 'mine.deeper'"
    (here / "mine" / "deep.py").write_text("def f(:\n")
    assert "deep.py cannot be read as Python" in missing("mine.deep:f")
    assert missing("math:sqrt") == "", "which is no Python file"


def test_aliases_of_aliases_are_counted_before_they_are_written_out(here, capsys):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (here / "job.yaml").write_text("\n".join(lines))
    assert "holds more than 1,000,000 values, as aliases of aliases make them" in said(
        capsys, "validate", "job.yaml"
    )


def test_a_time_is_text_as_kubernetes_reads_it(here, capsys):
    (here / "job.yaml").write_text(json.dumps({**HEAD, "spec": SPEC}).replace('"steps": 2', '"steps": 1:30'))
    assert "spec.steps: must be a valid integer; got '1:30'" in said(capsys, "validate", "job.yaml")


def test_overrides_may_stand_behind_options(capsys):
    assert cli.main(["validate", "job.yaml", "--no-files", "steps=3"]) == 0
    assert "3 steps" in capsys.readouterr().out
    assert cli.main(["validate", "job.yaml", "--set", "seed=1", "steps=4"]) == 0
    assert "4 steps" in capsys.readouterr().out
    assert cli.main(["validate", "job.yaml"]) == 0
    assert "2 steps" in capsys.readouterr().out, "one call's overrides are not the next one's"
    for main in (cli.main, kubectl_main):
        with pytest.raises(SystemExit):
            main(["suspend", "job", "steps=3"])
        assert "unrecognized arguments: steps=3" in capsys.readouterr().err


def test_an_algorithms_graph_takes_overrides(capsys):
    assert cli.main(["graph", "ppo"]) == 0
    assert "reference" in capsys.readouterr().out
    assert cli.main(["graph", "ppo", "ppo.klCoefficient=0"]) == 0
    assert "reference" not in capsys.readouterr().out


def test_there_is_nothing_to_resume(capsys):
    found = said(
        capsys, "run", "job.yaml", "generator.sharedWithTrainer=true", "--resume", "--workdir", "worng"
    )
    assert found.startswith("error: worng: holds no run to go on from; leave --resume out to start one")


def test_a_trials_name_is_blamed_on_the_trial(capsys):
    assert said(capsys, "run", "job.yaml", "--trial", "X Y").startswith("error: --trial: must be at most 40")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"promt": "x"}, "prompt: is missing; the row has 'promt'; rename 'promt'"),
        (
            {"messages": [{"role": "user", "content": "x"}]},
            "prompt: is missing; the row has 'messages'; rename 'messages'",
        ),
    ],
)
def test_a_rows_field_is_to_be_renamed(here, capsys, row, words):
    (here / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert f"rows.jsonl:1: {words}" in said(capsys, "validate", "job.yaml")


def test_data_comes_from_stores_that_are_known(capsys):
    found = said(capsys, "validate", "job.yaml", "data.train=['https://x/y.jsonl']")
    assert "spec.data.train[0]: must be a path, or begin with file://, s3://, gs://, az://" in found


def test_betas_are_shares(capsys):
    assert "spec.optimizer.betas[0]: must be less than 1; got 1.5" in said(
        capsys, "validate", "job.yaml", "optimizer.betas=[1.5, 0.9]"
    )


def test_a_missing_runtime_is_named_once(capsys):
    found = said(capsys, "validate", "job.yaml", "--runtime", "nope.yaml")
    assert found.startswith("error: nope.yaml: cannot be read")


@pytest.mark.parametrize("text", ["[a]", "", "\x80\x81"])
def test_a_file_that_is_no_kubeconfig(here, capsys, text):
    (here / "config").write_bytes(text.encode("latin-1"))
    assert cli.main(["status", "--kubeconfig", "config"]) == 1
    assert (
        "is no kubeconfig: it must be an object with clusters, users and contexts" in capsys.readouterr().err
    )


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("rlhf 0.")
