"""Typing errors in commands and files: each ends in one line with the place, the value and the remedy."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.rlhf import heed_signals
from tests.support.tiny.models import tiny_model

from rlhf_operator import cli
from rlhf_operator.kubectl import kubectl_main
from rlhf_operator.local.modules import missing

SPEC: dict[str, Any] = {
    "algorithm": "grpo",
    "steps": 2,
    "model": {"policy": "owner/model"},
    "data": {"train": ["rows.jsonl"]},
    "sampling": {"responsesPerPrompt": 2},
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


def error_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs `rlhf`, which must refuse its arguments; returns its error output."""
    assert cli.main(arguments) == 2
    return capsys.readouterr().err


def test_a_function_is_looked_for_in_its_module(here, capsys):
    wrong = 'reward.functions=[{function: "scoring:rihgt"}]'
    assert error_output(capsys, "validate", "job.yaml", wrong) == (
        f"error: spec.reward.functions[0].function: {here}/scoring.py defines no 'rihgt'; did you mean 'right'?; "
        "got 'scoring:rihgt'\n"
    )
    nowhere = 'trackers=[{kind: "no.where:Tracker"}]'
    assert "spec.trackers[0].kind: no module 'no' in" in error_output(capsys, "validate", "job.yaml", nowhere)
    assert cli.main(["validate", "job.yaml"]) == 0


@pytest.mark.parametrize("name", ["parsed", "score", "right", "rough", "Judge"])
def test_every_way_to_define_a_name_counts(name):
    assert missing(f"scoring:{name}") == ""


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("def score(completions, **kwargs): ...", "has the parameters (completions, **kwargs); "),
        ("def score(prompt, response, row, gold): ...", "has the parameters (prompt, response, row, gold); "),
        ("def score(prompts, responses, rows, *, key): ...", "has the parameters "),
        ("async def score(prompts, responses, rows): ...", "is an async function; "),
        ("def score(prompts, responses, rows, tokens): ...", ""),
        ("def score(*given, **more): ...", ""),
        ("def score(p, r, rows, key=None): ...", ""),
        ("@wrapped\ndef score(rows): ...", ""),
        ("if new:\n    def score(rows): ...", ""),
    ],
)
def test_a_reward_function_is_told_its_parameters_before_any_model_is_loaded(here, capsys, written, message):
    (here / "scoring.py").write_text(written)
    arguments = ("validate", "job.yaml", "reward.functions=[{function: 'scoring:score'}]")
    if not message:
        assert cli.main(arguments) == 0
        return
    output = error_output(capsys, *arguments)
    assert output.startswith(f"error: spec.reward.functions[0].function: {message}")
    assert "a reward function is `def score(prompts, responses, rows)`" in output


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
    assert "holds more than 1,000,000 values, as aliases of aliases make them" in error_output(
        capsys, "validate", "job.yaml"
    )


def test_a_time_is_text_as_kubernetes_reads_it(here, capsys):
    (here / "job.yaml").write_text(json.dumps({**HEAD, "spec": SPEC}).replace('"steps": 2', '"steps": 1:30'))
    assert "spec.steps: must be a valid integer; got '1:30'" in error_output(capsys, "validate", "job.yaml")


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
    output = error_output(
        capsys, "run", "job.yaml", "generator.sharedWithTrainer=true", "--resume", "--workdir", "worng"
    )
    assert output.startswith("error: worng: holds no run to go on from; leave --resume out to start one")


def test_a_trials_name_is_blamed_on_the_trial(capsys):
    assert error_output(capsys, "run", "job.yaml", "--trial", "X Y").startswith(
        "error: --trial: must be at most 40"
    )


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
    assert f"rows.jsonl:1: {words}" in error_output(capsys, "validate", "job.yaml")


@pytest.mark.parametrize(
    ("name", "holds", "message"),
    [
        ("rows.arrow", b"ARROW1", "is Arrow, which is not read; write its rows as JSONL, CSV or Parquet"),
        (
            "rows.jsonl.gz",
            b"\x1f\x8b\x08\x00",
            "is compressed (gzip), which is not read; decompress it first",
        ),
        ("rows.json", b"PAR1....PAR1", "is Parquet; let its name end with .parquet"),
        ("rows.CSV", b"prompt\n", "is no table by its name; let it end with .csv"),
        (
            "rows.parquet",
            b"PAR1, and then the connection ended",
            "is not a whole Parquet file",
        ),
        (
            "openai/gsm8k",
            None,
            "cannot be read: No such file or directory; if it is a dataset of the hub, name a split of it, such as "
            "hf://openai/gsm8k:train",
        ),
    ],
)
def test_data_of_another_form_is_told_once_and_not_as_bad_rows(here, capsys, name, holds, message):
    if holds is not None:
        (here / name).write_bytes(holds)
    (error,) = error_output(capsys, "validate", "job.yaml", f"data.train=[{name}]").splitlines()
    assert error.startswith(f"error: spec.data.train[0]: {name}: {message}")


def test_data_comes_from_stores_that_are_known(capsys):
    output = error_output(capsys, "validate", "job.yaml", "data.train=['https://x/y.jsonl']")
    assert "spec.data.train[0]: must be a path, or begin with file://, s3://, gs://, az://" in output


def test_a_number_among_texts_needs_quotes(here, capsys):
    (here / "job.yaml").write_text(json.dumps({**HEAD, "spec": {**SPEC, "env": {"OMP_NUM_THREADS": 2}}}))
    output = error_output(capsys, "validate", "job.yaml")
    assert output == "error: spec.env.OMP_NUM_THREADS: must be text; put it in quotes; got 2\n"


def test_betas_are_shares(capsys):
    assert "spec.optimizer.betas[0]: must be less than 1; got 1.5" in error_output(
        capsys, "validate", "job.yaml", "optimizer.betas=[1.5, 0.9]"
    )


def test_a_missing_runtime_is_named_once(capsys):
    output = error_output(capsys, "validate", "job.yaml", "--runtime", "nope.yaml")
    assert output.startswith("error: nope.yaml: cannot be read")


@pytest.mark.parametrize("text", ["[a]", "", "\x80\x81"])
def test_a_file_that_is_no_kubeconfig(here, capsys, text):
    (here / "config").write_bytes(text.encode("latin-1"))
    assert cli.main(["status", "--kubeconfig", "config"]) == 1
    assert (
        "is not a kubeconfig: it must be an object with clusters, users and contexts"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("verb", ["status", "logs"])
def test_a_verb_of_the_cluster_says_where_the_run_of_this_machine_is(here, capsys, verb):
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / "status.json").touch()
    where = "for the run of this machine there are `rlhf status runs/mine` and `rlhf logs runs/mine`\n"
    with pytest.raises(SystemExit):
        cli.main(["suspend", "runs/mine"])
    assert capsys.readouterr().err.endswith(where)
    assert cli.main([verb, "mine", "--kubeconfig", "none"]) == 1
    assert capsys.readouterr().err == (
        f"error: none: there is no such kubeconfig; name one by --kubeconfig or KUBECONFIG; {where}"
    )


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("rlhf 0.")


RULE = "above: 1, action: warn"


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("kl_maen", "did you mean kl_mean?"),
        ("policy_grad_norm", "did you mean grad_norm?"),
        ("reward_rihgt_mean", "did you mean reward_right_mean?"),
        ("kl", "did you mean"),
        ("wall_clock", "docs/reference/metrics.md has all"),
    ],
)
def test_a_health_rule_names_a_metric_that_a_step_of_the_job_can_have(capsys, metric, hint):
    known = ", ".join(f"{{metric: {name}, {RULE}}}" for name in ("kl_mean", "reward_right_mean", "grad_norm"))
    output = error_output(
        capsys, "validate", "job.yaml", f"health.rules=[{known}, {{metric: {metric}, {RULE}}}]"
    )
    where = f"error: spec.health.rules[3].metric: no step of grpo has a metric {metric!r}; {hint}"
    assert output.startswith(where)
    assert output.count("\n") == 1


def test_a_chat_template_is_jinja(here, capsys):
    (here / "chat.jinja").write_text("{% for m in messages %}\n{{ m.content }\n{% endfor %}")
    assert (
        "spec.data.chatTemplate: is not a Jinja template: line 2: unexpected '}'; got 'chat.jinja'"
        in error_output(capsys, "validate", "job.yaml", "data.chatTemplate=chat.jinja")
    )
    assert "chatTemplate: is neither a template nor a file" in error_output(
        capsys, "validate", "job.yaml", "data.chatTemplate=chta.jinja"
    )
    marked = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert cli.main(["validate", "job.yaml", f"data.chatTemplate='{marked}'"]) == 0


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("owner/name/", "; did you mean owner/name?"),
        (" owner/name", "; did you mean owner/name?"),
        ("https://huggingface.co/owner/name", "; did you mean owner/name?"),
        ("http://elsewhere/owner/name", ""),
        ("my model", ""),
        (r"C:\models\mine", ""),
        (
            "runs/sft/policy",
            "; a job leaves it in its work directory runs/sft: run that job to its end first",
        ),
    ],
)
def test_a_model_is_a_directory_or_has_a_name_of_the_hub(capsys, name, meant):
    assert error_output(capsys, "validate", "job.yaml", f"model.policy={json.dumps(name)}") == (
        f"error: spec.model.policy: no such directory, and no hub name (`owner/name`){meant}; got {name!r}\n"
    )


def test_a_model_without_a_size_is_told_as_mistyped_where_it_is(capsys):
    assert error_output(capsys, "plan", "job.yaml", "model.policy=./modle") == (
        "error: spec.model.policy: no such directory, and no hub name (`owner/name`); got './modle'\n"
    )
    assert "spec.model.parameters: the size of the policy is not known" in error_output(
        capsys, "plan", "job.yaml"
    )


def test_a_forgotten_spec_is_told_with_what_is_wrong_below_it(here, capsys):
    (here / "job.yaml").write_text(json.dumps({**HEAD, **SPEC, "stepps": 3}))
    lines = error_output(capsys, "validate", "job.yaml", "sampling.topp=0.5").splitlines()
    fields = "algorithm, steps, model, data, sampling, reward"
    assert lines[0] == f"error: spec: its fields are at the top level: {fields}; indent them under spec:"
    assert sorted(lines[1:], reverse=True) == [
        "error: stepps: unknown field; known here: apiVersion, kind, metadata, spec",
        'error: spec.sampling.topp: unknown field (value 0.5); did you mean "topP"?',
    ]


@pytest.mark.parametrize(
    ("kind", "more"),
    [("ClusterRLHFRuntime", "; a runtime's file is given with --runtime FILE"), ("Deployment", "")],
)
@pytest.mark.parametrize("command", ["validate", "run"])
def test_an_object_of_another_kind_is_no_job(here, capsys, command, kind, more):
    (here / "job.yaml").write_text(json.dumps({**HEAD, "kind": kind, "spec": {"pods": {}}}))
    message = error_output(capsys, command, "job.yaml").removeprefix("error: ").removeprefix("job.yaml: ")
    assert message == f"kind: must be RLHFJob: this is not a job's manifest{more}; got '{kind}'\n"


def test_a_job_is_no_runtime(capsys):
    assert error_output(capsys, "validate", "job.yaml", "--runtime", "job.yaml") == (
        "error: job.yaml: kind: must be RLHFRuntime or ClusterRLHFRuntime: this is not a runtime's manifest; "
        "got 'RLHFJob'\n"
    )


@pytest.mark.parametrize("text", ["[${F:x}]", "{train: ${F}}"])
def test_a_variable_in_brackets_needs_quotes(here, capsys, text):
    (here / "job.yaml").write_text(f"kind: RLHFJob\ndata: {text}\n")
    assert "within [...] and {...} put ${NAME} in quotes" in error_output(capsys, "validate", "job.yaml")
    (here / "job.yaml").write_text("kind: [RLHFJob\n")
    assert "in quotes" not in error_output(capsys, "validate", "job.yaml"), "another mistake"


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("lr=0.1", "spec.optimizer.learningRate"),
        ("learning_rate=0.1", "spec.optimizer.learningRate"),
        ("kl_coef=0.1", "spec.grpo.klCoefficient"),
        ("grpo.kl_coeff=0.1", "spec.grpo.klCoefficient"),
        ("algorithm=ppo init_kl_coef=0.1", "spec.ppo.klCoefficient"),
        ("batch_size=8", "spec.data.promptsPerStep"),
        ("num_generations=8", "spec.sampling.responsesPerPrompt"),
        ("max_new_tokens=8", "spec.sampling.maxNewTokens"),
        ("pods.gpus=8", "spec.pods.gpu.count"),
        ("pods.cpu=8", "spec.pods.resources.requests"),
        ("generator.cpu=8", "spec.generator.pods.resources.requests"),
        ("trainer.mode=ddp", "spec.trainer.deepspeed.zero_optimization.stage"),
        ("step=3", '"steps"'),
        ("checkpoint.steps=3", "spec.steps"),
    ],
)
def test_a_name_of_another_system_or_place_leads_to_the_field(capsys, override, field):
    output = error_output(capsys, "validate", "job.yaml", *override.split())
    assert re.search(rf"unknown field \(value .*\); did you mean {re.escape(field)}\?\n", output)


def test_a_list_of_files_is_no_manifest(here, capsys):
    (here / "list.yaml").write_text("- job.yaml\n")
    assert "must be one RLHFJob object; it holds a list" in error_output(capsys, "validate", "list.yaml")
    assert "is a file of rows; give a manifest" in error_output(capsys, "validate", "rows.jsonl")
    with pytest.raises(SystemExit):
        cli.main(["validate", "job.yaml", "list.yaml"])
    assert "a command takes one manifest, which names others by `include`" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_options_and_models_that_vllm_does_not_have_are_told_before_it_is_started(here, capsys):
    options = "{max-num-seqs: 4, no-enable-prefix-caching: true, compilation-config.mode: 0, hf-overrides: {}"
    untried = "generator.untriedEngineArguments=true"
    assert cli.main(["validate", "job.yaml", f"generator.engineArguments={options}}}", untried]) == 0
    wrong = f"generator.engineArguments={options}, max-num-sqes: 4}}"
    assert "was never tried with weights of a trainer; did you mean max-num-seqs?" in error_output(
        capsys, "validate", "job.yaml", wrong
    )
    output = error_output(capsys, "validate", "job.yaml", wrong, untried)
    assert output == (
        "error: spec.generator.engineArguments.max-num-sqes: vLLM has no such option; did you mean max-num-seqs?; "
        "got 4\n"
    )
    reference = "reference={engine: vllm, untriedEngineArguments: true, engineArguments: {gpu-memory: 0.5}}"
    assert "spec.reference.engineArguments.gpu-memory: vLLM has no" in error_output(
        capsys, "validate", "job.yaml", reference
    )
    config = tiny_model(here / "model", tie=False, seed=0) / "config.json"
    made, short = json.loads(config.read_text()), ("data.maxPromptLength=64", "sampling.maxNewTokens=64")
    for name, is_refused in (("LlamaForCausalLM", False), ("LlamaForSequenceClassification", True)):
        config.write_text(json.dumps(made | {"architectures": [name]}))
        refused = cli.main(["validate", "job.yaml", "model.policy=./model", *short]) == 2
        error = capsys.readouterr().err
        assert (refused, f"config.json names {name}, with which" in error) == (is_refused, is_refused), error
    config.write_text(json.dumps(made | {"architectures": ["Own"], "auto_map": {}}))
    assert cli.main(["validate", "job.yaml", "model.policy=./model", *short]) == 0


def test_a_models_directory_lacks_what_is_named_before_anything_starts(here, capsys):
    (here / "model").mkdir()
    for file, holds, lacks in (
        ("config.json", "{oops", "its config.json cannot be read: Expecting property name"),
        ("config.json", "{}", "has no weights (*.safetensors, *.bin); got './model'"),
        (
            "model.safetensors",
            "",
            "has no tokenizer (tokenizer.json or the like); copy its files there, or set ",
        ),
    ):
        (here / "model" / file).write_text(holds)
        assert f"error: spec.model.policy: {lacks}" in error_output(
            capsys, "validate", "job.yaml", "model.policy=./model"
        )
    assert cli.main(["validate", "job.yaml", "model.policy=./model", "model.tokenizer=owner/other"]) == 0


def test_a_file_alone_is_no_list_of_files(capsys):
    assert error_output(capsys, "validate", "job.yaml", "data.train=rows.jsonl") == (
        "error: spec.data.train: must be a list, such as [rows.jsonl]; got 'rows.jsonl'\n"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trackers=wandb", "spec.trackers: must be a list, such as [{kind: wandb}]; got 'wandb'"),
        ("trackers=[wandb]", "spec.trackers[0]: must be an object, such as {kind: wandb}; got 'wandb'"),
        ("data.sources=[a.jsonl]", "spec.data.sources[0]: must be an object, such as {path: a.jsonl}; "),
        ("reward.functions=scoring:right", "must be a list, such as [{function: scoring:right}]; got "),
        ("pods.volumes=[scratch]", "spec.pods.volumes[0]: must be an object; got 'scratch'"),
    ],
)
def test_a_word_in_place_of_a_list_or_object_is_shown_in_one(capsys, override, message):
    assert message in error_output(capsys, "validate", "job.yaml", override)


def test_the_list_that_a_message_shows_is_taken():
    for name, shown in (
        ("trackers", "{kind: tensorboard}"),
        ("reward.functions", "{function: scoring:right}"),
    ):
        assert cli.main(["validate", "job.yaml", f"{name}=[{shown}]"]) == 0


def test_bad_rows_are_told_beside_a_model_without_a_tokenizer(here, capfd):
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text('{"model_type": "llama"}')
    (here / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    assert cli.main(["data", "check", "job.yaml", "model.policy=./model"]) == 2
    tokenizer, row = capfd.readouterr().err.splitlines()[-2:]
    assert tokenizer.startswith(
        "error: spec.model.policy: cannot load './model': Couldn't instantiate the backend"
    )
    assert "sentencepiece" in tokenizer, "and what that means"
    assert row == "error: rows.jsonl:2: prompt: must be a valid string; got 3"


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("trainer.deepspeed={bf16: {enable: true}}", "spec.trainer.deepspeed.bf16.enable"),
        ("data={sources: [{path: rows.jsonl, weight: -1}]}", "spec.data.sources[0].weight"),
    ],
)
def test_one_mistake_is_told_once(capsys, override, field):
    (line,) = error_output(capsys, "validate", "job.yaml", override).splitlines()
    assert line.startswith(f"error: {field}: ")


def test_a_store_without_checkpoints_is_said_to_have_none(here, capsys):
    for verb in ("ls", "verify"):
        assert cli.main(["checkpoint", verb, str(here)]) == 0
        assert capsys.readouterr().out == f"{here} holds no checkpoint\n"


def test_roles_are_named_as_they_are_written(capsys):
    with pytest.raises(SystemExit):
        cli.main(["logs", "job", "--role", "trainr"])
    assert re.search(r"choose from '?trainer'?, '?generator'?, ", capsys.readouterr().err)


INTERRUPTED = """
import os, signal, sys
from rlhf_operator import entry
class Interrupts:
    def find_spec(self, name, *_):
        if name == "rlhf_operator.{module}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
entry.{program}()
"""


@pytest.mark.parametrize(("program", "module"), [("rlhf", "cli"), ("kubectl_rlhf", "kubectl")])
def test_an_interrupt_while_modules_load_is_no_traceback(program, module):
    code = INTERRUPTED.format(program=program, module=module)
    done = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=heed_signals, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
