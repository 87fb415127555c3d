"""`rlhf init`: an empty folder becomes a job that is valid; what is there already stays as it is."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import yaml

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.manifest.load import load
from rlhf_operator import cli

SUMS = '{"prompt": "1 + 1 =", "answer": "2"}\n'
PAIRS = '{"prompt": "1 + 1 =", "chosen": "2", "rejected": "3"}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("rewards", None)


def init(*arguments: str) -> int:
    return cli.main(["init", *arguments, "--model", "org/model"])


def files(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()} - {"__pycache__"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_empty_folder_becomes_a_valid_job_of_every_algorithm(algorithm, folder, capsys):
    taught = ["--teacher", "org/teacher"] if algorithm == "distillation" else []
    assert init("--algorithm", algorithm, *taught) == 0
    out = capsys.readouterr().out
    assert f"{algorithm}.yaml is valid: " in out
    assert out.endswith(f"begin with `rlhf run {algorithm}.yaml`\n")
    job = load(Path(f"{algorithm}.yaml"))
    written = {f"{algorithm}.yaml", f"{job.spec.graph.rows}.jsonl"}
    if job.spec.graph.rows == "prompts" and not taught:
        written |= {"rewards.py", "test_rewards.py"}
        runpy.run_path("test_rewards.py", run_name="__main__")
    assert files(folder) == written


def test_what_a_teacher_teaches_may_have_a_reward_too(folder):
    assert init("--algorithm", "distillation", "--teacher", "org/teacher", "--reward", "taste:score") == 0
    spec = load(Path("distillation.yaml")).spec
    assert spec.model.reference == "org/teacher"
    assert [function.function for function in spec.reward.functions] == ["taste:score"]
    assert spec.sampling.responses_per_prompt > 1
    assert files(folder) == {"distillation.yaml", "prompts.jsonl", "taste.py", "test_taste.py"}


@pytest.mark.parametrize(
    "rows", [{"prompt": "a"}, {"prompt": "a", "solution": 3}, {"prompt": "a", "a'\"b": "c"}]
)
def test_the_reward_that_is_written_scores_the_rows_that_are_given(rows):
    Path("own.jsonl").write_text(json.dumps(rows) + "\n")
    assert init("--algorithm", "grpo", "--data", "own.jsonl") == 0
    score = runpy.run_path("rewards.py")["score"]
    assert len(score(["a", "a"], ["b", "b c"], [rows, rows])) == 2
    runpy.run_path("test_rewards.py", run_name="__main__")


@pytest.mark.parametrize(
    ("name", "content"),
    [("own.jsonl", '{"question": "a", "solution": "b"}'), ("own.csv", "question,solution\na,b")],
)
def test_rows_with_other_names_are_read_by_columns(name, content, capsys):
    Path(name).write_text(content)
    assert init("--algorithm", "grpo", "--data", name) == 2
    assert "--columns says which" in capsys.readouterr().err
    assert init("--algorithm", "grpo", "--data", name, "--columns", "prompt=question") == 0
    assert f"{name}: rows with prompt, solution, as ppo, grpo, " in capsys.readouterr().out
    assert load(Path("grpo.yaml")).spec.data.columns == {"prompt": "question"}
    assert 'row["solution"]' in Path("rewards.py").read_text()


def test_what_is_there_is_used_and_stays(folder, capsys):
    Path("rewards.py").write_text("def score(prompts, responses, rows): return [0.0] * len(responses)\n")
    Path("prompts.jsonl").write_text(SUMS)
    assert init("--algorithm", "grpo") == 0
    assert "wrote: grpo.yaml\n" in capsys.readouterr().out
    Path("grpo.yaml").write_text("mine")
    assert init("--algorithm", "grpo") == 2
    assert capsys.readouterr().err == (
        "error: grpo.yaml: is there already; add --overwrite, or name another FILE\n"
    )
    assert init("--algorithm", "grpo", "--overwrite", "--data", "none.jsonl") == 2
    assert Path("grpo.yaml").read_text() == "mine"
    assert init("--algorithm", "grpo", "--overwrite") == 0
    assert Path("prompts.jsonl").read_text() == SUMS
    assert files(folder) == {"grpo.yaml", "prompts.jsonl", "rewards.py"}


@pytest.mark.parametrize(
    ("arguments", "rows", "message"),
    [
        (
            "--algorithm sft --data rows.jsonl",
            PAIRS,
            "--data: rows.jsonl:1: answer: is missing; the row has 'prompt', 'chosen', 'rejected'; --columns "
            "says which of them is the answer; these rows are for ppo, ",
        ),
        ("--algorithm dpo --data rows.jsonl", SUMS, "these rows are for ppo, grpo"),
        (
            "--algorithm grpo --data none.jsonl",
            "",
            "--data: none.jsonl: cannot be read: No such file or directory",
        ),
        ("--algorithm grop", "", "--algorithm: did you mean \"grpo\"?; got 'grop'"),
        ("--algorithm sft --reward a:b", "", "--reward: sft trains on given responses, which nothing scores"),
        (
            "--algorithm ppo --reward a:b()",
            "",
            "--reward: must be package.module:name, or a model; got 'a:b()'",
        ),
        ("--algorithm distillation", "", "--teacher: is missing; a folder in Hugging Face format"),
        ("--algorithm grpo --teacher a/b", "", "--teacher: grpo has none; leave it out; got 'a/b'"),
        ("--algorithm distillation --teacher ./none", "", "spec.model.reference: no such directory"),
        ("--algorithm grpo --reward rows:score --model ./none", "", "spec.model.policy: no such directory"),
    ],
)
def test_what_cannot_be_used_is_refused_and_leaves_no_file(arguments, rows, message, folder, capsys):
    Path("rows.jsonl").write_text(rows)
    assert cli.main(["init", "--model", "org/model", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
    assert files(folder) == {"rows.jsonl"}


def test_off_a_terminal_all_that_is_missing_is_named_at_once(folder, capsys):
    assert cli.main(["init"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.partition(": is missing; ")[0] for line in errors] == [
        "error: --algorithm",
        "error: --model",
    ]
    assert files(folder) == set()


def test_on_a_terminal_it_asks_until_it_can_go_on(monkeypatch, capsys):
    answers = iter(["grop", "", "./none", "org/model", "none.jsonl", "", "a b:c", "taste:score"])
    monkeypatch.setattr("builtins.input", lambda _question: next(answers))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["init"]) == 0
    out = capsys.readouterr().out
    for words in (
        'did you mean "grpo"?',
        "no such directory",
        "none.jsonl: cannot be read",
        "must be package.module",
    ):
        assert words in out
    assert yaml.safe_load(Path("grpo.yaml").read_text())["spec"]["reward"] == {
        "functions": [{"function": "taste:score"}]
    }


@pytest.mark.parametrize(("positions", "limits"), [(64, (32, 32)), (100_000, (512, 128)), ("?", (512, 128))])
def test_lengths_fit_the_positions_of_a_local_model(positions, limits, monkeypatch):
    Path("model").mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": positions}
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        Path("model", name).write_text(json.dumps(config))
    monkeypatch.setattr("rlhf_operator.commands.init.validate", lambda _options: 0)
    assert cli.main(["init", "--algorithm", "grpo", "--model", "./model"]) == 0
    spec = load(Path("grpo.yaml")).spec
    assert (spec.data.max_prompt_length, spec.sampling.max_new_tokens) == limits
    assert spec.optimizer.learning_rate == 1e-6, "as its size is not known"


@pytest.mark.parametrize(("width", "rate"), [(1_000, 1e-4), (200_000_000, 1e-6)])
def test_a_small_model_gets_a_rate_at_which_it_learns(width, rate, monkeypatch):
    Path("model").mkdir()
    (Path("model") / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}'
    )
    head = json.dumps({"w": {"dtype": "F32", "shape": [width], "data_offsets": [0, 4 * width]}}).encode()
    (Path("model") / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    monkeypatch.setattr("rlhf_operator.commands.init.validate", lambda _options: 0)
    assert cli.main(["init", "--algorithm", "grpo", "--model", "./model"]) == 0
    assert load(Path("grpo.yaml")).spec.optimizer.learning_rate == rate
