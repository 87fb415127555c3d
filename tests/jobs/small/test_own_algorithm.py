"""examples/own_algorithm as a user runs it: it learns; and what is wrong with one's own algorithm is told."""

import json
import re
import sys
from pathlib import Path

import pytest
from tests.support.rlhf import ROOT, run, succeed
from tests.support.tiny.models import tiny_model

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import load
from rlhf_api.rules.own_algorithm import resolve
from rlhf_operator import cli

MANIFEST = ROOT / "examples" / "own_algorithm" / "best_of_n.yaml"
REWARD = """
def letters(prompts, responses, rows):
    return [sum(c.isascii() and c.isalpha() for c in r) / max(1, len(r)) for r in responses]
"""
TURNS = """
class Letters:
    def reset(self, row):
        self.left = 2

    def step(self, message):
        text, self.left = message["content"], self.left - 1
        return " and: ", sum(c.isascii() and c.isalpha() for c in text) / max(1, len(text)), not self.left
"""
WRONG = """
from dataclasses import replace

from examples.own_algorithm.best_of_n import ALGORITHM, graph
from rlhf_api import Graph

NUMBER = 3

def unwritten_graph(spec, settings):
    return Graph(tuple(node for node in graph(spec, settings).nodes if node.name != "choose"))

UNWRITTEN = replace(ALGORITHM, graph=unwritten_graph)

def misspelt_graph(spec, settings):
    return Graph(nodes_of(settings))

MISSPELT = replace(ALGORITHM, graph=misspelt_graph)
NODES = replace(ALGORITHM, graph=lambda spec, settings: graph(spec, settings).nodes)

def failing_rules(spec, where, settings):
    yield settings.kept

FAILING = replace(ALGORITHM, rules=failing_rules)

class Plain:
    keep = 1

PLAIN = replace(ALGORITHM, settings=Plain)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, prompts, a reward function, and algorithms that are wrong."""
    folder = tmp_path_factory.mktemp("own")
    tiny_model(folder / "model", tie=False, seed=0)
    rows = [json.dumps({"prompt": f"Word {i}:"}) + "\n" for i in range(16)]
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / "reward_of_this_test.py").write_text(REWARD)
    (folder / "turns_of_this_test.py").write_text(TURNS)
    (folder / "wrong_algorithms.py").write_text(WRONG)
    return folder


def overrides(folder: Path) -> tuple[str, ...]:
    return (
        f"spec.model.policy={folder / 'model'}",
        f"spec.data.train=[{folder / 'rows.jsonl'}]",
        "spec.reward.functions=[{function: reward_of_this_test:letters}]",
        "spec.generator.sharedWithTrainer=true",
        "spec.data.promptsPerStep=8",
        "spec.sampling={responsesPerPrompt: 8, maxNewTokens: 12}",
        "spec.optimizer.learningRate=0.01",
        "spec.steps=8",
    )


def test_it_learns(folder, tmp_path):
    done = succeed(MANIFEST, tmp_path / "run", *overrides(folder), PYTHONPATH=paths(folder))
    rewards = [step["reward_mean"] for step in done.steps]
    assert rewards[-1] > rewards[0] + 0.1
    assert all(0 < step["chosen_share"] < 0.5 for step in done.steps)
    assert (tmp_path / "run" / "policy" / "config.json").is_file()
    assert set(done.status["roles"]) == {"trainer", "reward"}


def test_its_scores_are_an_environments_rewards(folder, tmp_path):
    """The graph is the same: its Score node stands for them."""
    given = [each for each in overrides(folder) if not each.startswith("spec.reward")]
    environment = "spec.environment={path: 'turns_of_this_test:Letters', turns: 2, maxTokens: 40}"
    done = succeed(
        MANIFEST, tmp_path / "run", *given, "spec.reward={}", environment, PYTHONPATH=paths(folder)
    )
    rewards = [step["reward_mean"] for step in done.steps]
    assert rewards[-1] > rewards[0] + 0.1
    assert {step["turns_mean"] for step in done.steps} == {2}
    assert set(done.status["roles"]) == {"trainer"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("spec.algorithm=absent.module:ALGORITHM", "spec.algorithm: no module 'absent' in "),
        (
            "spec.algorithm=wrong_algorithms:UNWRITTEN",
            "spec.algorithm: the graph of 'wrong_algorithms:UNWRITTEN' cannot run: "
            "node 'train_policy' reads 'chosen', which no node before it writes",
        ),
    ],
    ids=["by the host", "by the trainer"],
)
def test_a_wrong_one_is_refused(override, message, folder, tmp_path):
    """The host imports nothing: it sees that the module is there. The trainer begins with all else."""
    done = run(MANIFEST, tmp_path / "run", *overrides(folder), override, PYTHONPATH=paths(folder))
    assert done.code in (1, 2)
    assert message in done.output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "spec.algorithm=wrong_algorithms:NUMBER",
            "spec.algorithm: 'wrong_algorithms:NUMBER' is a int, not an rlhf_api.Algorithm",
        ),
        (
            "spec.algorithm=wrong_algorithms:MISSPELT",
            "spec.algorithm: the graph of 'wrong_algorithms:MISSPELT' cannot be made: "
            "NameError: name 'nodes_of' is not defined (",
        ),
        (
            "spec.algorithm=wrong_algorithms:NODES",
            "spec.algorithm: the graph function of 'wrong_algorithms:NODES' returned a tuple, not a Graph",
        ),
        (
            "spec.algorithm=wrong_algorithms:FAILING",
            "spec.algorithm: the rules of 'wrong_algorithms:FAILING' raised AttributeError: ",
        ),
        (
            "spec.algorithm=wrong_algorithms:PLAIN",
            "spec.algorithm: the settings of 'wrong_algorithms:PLAIN' have to be a class that derives from ",
        ),
        (
            "spec.custom.scores=false",
            "spec.custom: the graph of 'examples.own_algorithm.best_of_n:ALGORITHM' has ",
        ),
        (
            "spec.custom.settings={keep: 0}",
            "spec.custom.settings.keep: must be greater than or equal to 1; got 0",
        ),
        (
            "spec.reward.fineGrained=true",
            "spec.reward.fineGrained: the graph of 'examples.own_algorithm.best_of_n:ALGORITHM' reads scores of whole",
        ),
    ],
    ids=["type", "error", "no graph", "rules", "no settings", "declaration", "settings", "tokens"],
)
def test_what_the_trainer_refuses(override, message, folder, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(folder)
    given = [o for o in overrides(folder) if "scores=false" not in override or "reward" not in o]
    without = ["spec.reward.functions=[]"] if "scores=false" in override else []
    valid = load(MANIFEST, [*given, *without, override])
    with pytest.raises(InvalidJob, match=re.escape(message)):
        resolve(valid.spec)


def test_its_graph_is_drawn(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert cli.main(["graph", str(MANIFEST)]) == 0
    assert "<b>choose</b><br/>compute: keep_best" in capsys.readouterr().out


def paths(folder: Path) -> str:
    """With the packages that these tests have imported, wherever they lie."""
    return ":".join((str(folder), str(ROOT / "operator"), str(ROOT / "trainer_image")))
