"""`rlhf env try`: episodes of a job's environment with its own model, and what people read of them."""

import io
import json
import sys
from array import array
from pathlib import Path

import pytest
import torch
import yaml
from tests.support.bare_python import PYDANTIC, make_python
from tests.support.tiny.models import byte_tokenizer, tiny_model
from tests.unit.api.manifests import document, job

from rlhf_api.contract.run import RunConfig
from rlhf_operator import cli
from rlhf_trainer.commands.episode_lines import episode_lines, summary
from rlhf_trainer.commands.play_episodes import main
from rlhf_trainer.rollout.partial_rollout import PartialRollout, Response
from rlhf_trainer.tensors.records import Outcome, Prompt

ALONE = (
    "spec.model={policy: policy, dtype: float32}",
    "spec.data={train: [rows.jsonl], promptsPerStep: 8, maxPromptLength: 64}",
    "spec.sampling={maxNewTokens: 6}",
    "spec.trainer={}",
    "spec.reward={}",
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model, rows and this package's games."""
    tiny_model(tmp_path / "policy", tie=False, seed=0)
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"row {i}?"}) + "\n" for i in range(3))
    )
    games = Path(__file__).with_name("games.py").read_text()
    (tmp_path / "games.py").write_text(games)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def played(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, path: str = "games:Guess", more: str = ""
) -> int:
    made = job(*ALONE, f"spec.environment={{path: '{path}', turns: 3, maxTokens: 60{more}}}")
    config = RunConfig(job="job", spec=made.spec, workdir="/w")
    monkeypatch.setattr(sys, "stdin", io.StringIO(config.model_dump_json(by_alias=True)))
    return main(arguments)


@pytest.mark.usefixtures("here")
def test_episodes_are_played_by_turns_with_the_jobs_own_model(monkeypatch, capsys):
    assert played(monkeypatch, "--episodes", "2", "--row", "2") == 0
    first, second, end = (
        capsys.readouterr().out.replace("episode 2", "|episode 2").replace("2 episodes", "|").split("|")
    )
    assert first.startswith("episode 1 of 2: row 2, rows.jsonl:3\n")
    assert second.startswith("episode 2 of 2: row 0, rows.jsonl:1\n")
    for episode in (first, second):
        assert "  opening     21 context  'A number from 1 to 9?'\n" in episode
        sampled = [int(line.split()[2]) for line in episode.splitlines() if line.startswith("  turn ")]
        assert len(sampled) == 3
        assert all(1 <= count <= 6 for count in sampled)
        assert f"of which training learns from {sum(sampled)}," in episode
        assert "ended by a limit (turns or maxTokens)" in episode
    assert end.startswith(": reward ")
    assert "3 turns each" in end


def test_a_class_plays_in_an_interpreter_of_its_own(here, monkeypatch, capsys):
    python = make_python(here / "envs", *PYDANTIC)
    lines = ["import sys", "class Own:"]
    lines += [
        "    def reset(self, row): return sys.prefix[-5:]",
        "    def step(self, message): return '', 1.0, True",
    ]
    (here / "own.py").write_text("\n".join(lines))
    assert played(monkeypatch, "--episodes", "1", path="own:Own", more=f", python: '{python}'") == 0
    printed = capsys.readouterr().out
    assert "context  '/envs'" in printed
    assert "reward 1, 1 turn" in printed


def test_an_interpreter_that_is_none_is_an_error_before_the_model_is_loaded(here, monkeypatch, capsys):
    (here / "policy" / "model.safetensors").unlink()
    assert played(monkeypatch, more=", python: /bin/false") == 2
    assert capsys.readouterr().err.startswith("error: spec.environment.python: is no Python interpreter: ")


@pytest.mark.usefixtures("here")
def test_the_same_seed_plays_the_same_episodes(monkeypatch, capsys):
    outputs = []
    for _ in range(2):
        played(monkeypatch, "--episodes", "1")
        outputs.append(capsys.readouterr().out.rpartition(", ")[0].rpartition(", ")[0])
    assert outputs[0] == outputs[1]
    assert torch.initial_seed() == 0


@pytest.mark.slow
def test_vllm_samples_where_it_is_asked_for(here, monkeypatch, capsys):
    tiny_model(here / "policy", tie=True, seed=0)
    assert played(monkeypatch, "--episodes", "1", "--vllm") == 0
    printed = capsys.readouterr()
    assert printed.err.startswith("vLLM is loading the policy, which takes about a minute\n")
    assert "vLLM is ready after " in printed.err
    assert "  turn 3 " in printed.out
    assert "ended by a limit (turns or maxTokens): reward " in printed.out


def test_a_policy_that_vllm_cannot_load_is_one_error(here, monkeypatch, capsys):
    (here / "policy" / "config.json").write_text("{}")
    assert played(monkeypatch, "--episodes", "1", "--vllm") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: vLLM ended with exit code ")
    assert " while it was loading the policy: " in error


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("path", "more", "message"),
    [
        ("games:Nothing", "", "spec.environment.path: 'games:Nothing' cannot be imported"),
        (
            "games:Guess",
            ", settings: {wide: 3}",
            "does not take spec.environment.settings: got an unexpected keyword",
        ),
    ],
)
def test_a_class_that_cannot_be_used_is_one_error(monkeypatch, capsys, path, more, message):
    assert played(monkeypatch, path=path, more=more) == 2
    assert message in capsys.readouterr().err


def test_an_environment_that_raises_ends_its_episode_with_the_reason(here, monkeypatch, capsys):
    (here / "raises.py").write_text(
        "class Raises:\n    def reset(self, row): ...\n    def step(self, message):\n        return 1 / 0\n"
    )
    assert played(monkeypatch, "--episodes", "1", path="raises.py:Raises") == 1
    out = capsys.readouterr().out
    assert "  no reward, so training leaves it out: step raised ZeroDivisionError" in out
    assert "raises.py:4)" in out
    assert out.endswith("1 episode; 1 without a reward\n")


@pytest.mark.usefixtures("here")
def test_a_row_that_is_none_is_refused(monkeypatch, capsys):
    assert played(monkeypatch, "--row", "3") == 2
    assert capsys.readouterr().err == "error: --row: must be one of the 3 rows, from 0 to 2; got 3\n"


BYTES = byte_tokenizer()
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": "x"}}</tool_call>'


def episode(*parts: tuple[str, bool], outcome: Outcome | None, end: str = "stop") -> PartialRollout:
    """Of a tokenizer of bytes: texts, and whether each was sampled."""
    response = Response(end=end, outcome=outcome)
    for text, sampled in parts:
        tokens = array("i", BYTES(text)["input_ids"])
        if sampled:
            response.add(tokens, array("f", [0.0]) * len(tokens), 0)
        else:
            response.add_context(tokens)
    return PartialRollout(Prompt("0/0", tuple(BYTES("q?")["input_ids"]), {}, 0), [response])


def test_lines_tell_what_was_sampled_what_was_called_and_each_turns_reward():
    work = episode((CALL, True), ("3", False), ("3.", True), outcome=Outcome(1.5, 2, ((70, 0.5), (73, 1.0))))
    assert list(episode_lines(work, BYTES, 0.25, tokens=False, colour=False)) == [
        "  opening      2 context  'q?'",
        f"  turn 1      71 sampled  '{CALL}'  reward 0.5",
        "           calls add(a=1, b='x')",
        "  reply        1 context  '3'",
        "  turn 2       2 sampled  '3.'  reward 1",
        "  ended by the environment: reward 1.5, 2 turns, 74 tokens, of which training learns from 73, 0.2 s",
    ]


def test_what_opens_a_branch_is_no_reply():
    work = episode(("a", True), ("b", False), ("c", True), outcome=Outcome(0.0, 2))
    work.responses[0].add_context(array("i", [100, 101]), branch=True)
    lines = episode_lines(work, BYTES, 0.0, tokens=False, colour=False)
    assert [line.split()[0] for line in lines] == ["opening", "turn", "reply", "turn", "branch", "ended"]


def test_each_token_is_shown_where_asked_for():
    work = episode(("a", True), ("b", False), ("c", True), outcome=Outcome(0.0, 2), end="length")
    lines = list(episode_lines(work, BYTES, 0.0, tokens=True, colour=True))
    assert any("\x1b[32m" in line and "sampled  'a'" in line for line in lines)
    assert any("\x1b[2m" in line and "context  'b'" in line for line in lines)
    assert sum("\x1b[32m" in line for line in lines) == 4
    assert lines[-1].startswith("  ended by a limit (turns or maxTokens): reward 0, 2 turns, 3 tokens")


def test_the_summary_counts_episodes_without_a_reward():
    rewards = [Response(outcome=Outcome(reward, 2)) for reward in (1.0, -0.5)]
    failed = Response(outcome=Outcome(float("nan"), 1, problem="it broke"))
    assert summary([*rewards, failed]) == (
        "3 episodes: reward 0.25 on average, from -0.5 to 1; 1.67 turns each; 1 without a reward"
    )


def test_the_command_names_what_the_manifest_lacks(here, capsys):
    made = document(*ALONE, "spec.reward={functions: [{function: 'games:Guess'}]}")
    (here / "job.yaml").write_text(yaml.safe_dump(made))
    assert cli.main(["env", "try", "job.yaml"]) == 2
    assert (
        "spec.environment: is required here and missing: name a class as its path" in capsys.readouterr().err
    )
    (here / "games2.py").write_text("def play(): ...\nclass Open:\n    def step(self, message): ...\n")
    for name, message in (
        ("play", "is a function"),
        ("Open", "has no reset"),
        ("Close", "defines no 'Close'"),
    ):
        made["spec"]["environment"] = {"path": f"games2.py:{name}"}
        made["spec"]["reward"] = {}
        (here / "job.yaml").write_text(yaml.safe_dump(made))
        assert cli.main(["env", "try", "job.yaml"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: spec.environment.path: ")
        assert message in error
