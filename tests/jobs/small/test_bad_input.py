"""Users' mistakes: each ends with one clear error and an exit code other than 0, and leaves no process running."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.rlhf import Finished, launch, run
from tests.support.tiny.models import byte_tokenizer, tiny_model

from rlhf_operator.cli import main
from rlhf_store.archive import Archive

FUNCTIONS = """
calls = 0

def fine(prompts, responses, rows):
    return [float(len(r)) for r in responses]

def fails_in_the_second_step(prompts, responses, rows):
    global calls
    calls += 1
    return fine(prompts, responses, rows) if calls == 1 else [rows[0]["grade"]]
"""
JOB = {
    "apiVersion": "rlhf.dev/v1alpha1",
    "kind": "RLHFJob",
    "metadata": {"name": "bad"},
    "spec": {
        "algorithm": "ppo",
        "steps": 3,
        "model": {"dtype": "float32", "policy": "model"},
        "data": {"train": ["rows.jsonl"], "maxPromptLength": 16, "promptsPerStep": 4},
        "sampling": {"maxNewTokens": 8},
        "ppo": {"minibatchSize": 4, "klCoefficient": 0.0},  # without a reference: a process less
        "generator": {"sharedWithTrainer": True},
        "reward": {"functions": [{"function": "scores_of_this_test:fine"}]},
        "checkpoint": {"everySteps": 1},
    },
}
# One process instead of three, for what any algorithm finds out in the same way.
SFT = (
    *("spec.algorithm=sft", "spec.ppo={}", "spec.sampling={}", "spec.generator={}", "spec.reward={}"),
    "spec.data.maxResponseLength=16",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model, rows, reward functions and the manifest of a job that would run as it stands."""
    folder = tmp_path_factory.mktemp("bad")
    tiny_model(folder / "model", tie=False, seed=0)
    rows = [json.dumps({"prompt": f"Tell me about {i}", "answer": "No."}) + "\n" for i in range(8)]
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / "scores_of_this_test.py").write_text(FUNCTIONS)
    (folder / "job.yaml").write_text(json.dumps(JOB))
    return folder


def fail(folder: Path, workdir: Path, *overrides: str, **environ: str) -> tuple[Finished, str]:
    """The run, which left no process behind (see `finish`), and its one error line."""
    paths = (f"spec.model.policy={folder / 'model'}", f"spec.data.train=[{folder / 'rows.jsonl'}]")
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    finished = run(folder / "job.yaml", workdir, *paths, *overrides, PYTHONPATH=path, **environ)
    assert finished.code in (1, 2), finished.output
    errors = [line for line in finished.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, finished.output
    assert "Traceback" not in finished.output
    return finished, errors[0]


def assert_saved(finished: Finished, step: int) -> None:
    """Metrics up to the failure are there, and the last words say how to go on."""
    assert [line["step"] for line in finished.steps] == list(range(1, step + 1))
    assert finished.status["lastCheckpoint"]["step"] == step
    assert [cut.step for cut in Archive(f"file://{finished.workdir}/checkpoints").entries()][-1] == step
    assert re.search(rf"newest checkpoint is of step {step}; go on with .*--resume", finished.output)


def test_a_reward_function_that_raises_in_the_second_step(folder, tmp_path):
    finished, error = fail(
        folder,
        tmp_path / "run",
        "spec.reward.functions=[{function: scores_of_this_test:fails_in_the_second_step}]",
        "spec.export.everySteps=1",
    )
    assert "spec.reward.functions[0].function: the function raised KeyError: 'grade'" in error
    assert "scores_of_this_test.py:10" in error
    assert finished.status["phase"] == "Failed"
    assert_saved(finished, 1)
    assert "--resume` once this is mended: as it is, a resumed run ends here again" in finished.output
    # The model so far: as it was exported after that step, and by the command that the last words say.
    (command,) = re.findall("`rlhf (checkpoint export [^`]+)`", finished.output)
    assert main(shlex.split(command)) == 0
    exported, written = (
        load_file(finished.workdir / name / "model.safetensors") for name in ("policy", "policy-1")
    )
    assert exported.keys() == written.keys()
    assert all(torch.equal(tensor, written[name]) for name, tensor in exported.items())
    assert "Trained by ppo for 1 of " in (finished.workdir / "policy" / "README.md").read_text()


def test_an_engine_that_computes_another_policy(folder, tmp_path):
    """Real vLLM, with the trainer's weights and other norms: rewards and curves would look plausible. It works ahead of
    training: of the tokens, those are compared that the policy's present weights sampled."""
    other = "{engineArguments: {hf-overrides: {rms_norm_eps: 1.0}}, untriedEngineArguments: true}"
    grpo = ("spec.algorithm=grpo", "spec.ppo={}", "spec.grpo={minibatchSize: 8, klCoefficient: 0.0}")
    finished, error = fail(
        folder,
        tmp_path / "run",
        *grpo,
        *("spec.sampling.responsesPerPrompt=2", "spec.rollout.maxStaleness=1", f"spec.generator={other}"),
    )
    assert "spec.health.logprobDifference: the generators serve another policy than the trainer's" in error
    assert finished.status["health"]["reason"] == "OtherPolicy"
    assert not (tmp_path / "run" / "metrics.jsonl").exists(), "no step is done"


def test_options_that_vllms_own_parser_refuses(folder, tmp_path):
    """Names are compared with vLLM's before a start; values are vLLM's to read, once, before it loads anything."""
    grpo = ("spec.algorithm=grpo", "spec.ppo={}", "spec.grpo={minibatchSize: 8, klCoefficient: 0.0}")
    job = (*grpo, "spec.sampling.responsesPerPrompt=2")
    wrong = "spec.generator={engineArguments: {max-num-seqs: many}}"
    finished, error = fail(folder, tmp_path / "run", *job, wrong)
    assert "spec.generator.engineArguments: vLLM refuses its options: argument --max-num-seqs" in error
    assert finished.status["restarts"] == 0
    wrong = "spec.generator={untriedEngineArguments: true, engineArguments: {max-num-sqes: 4}}"
    _, error = fail(folder, tmp_path / "none", *job, wrong)
    assert error.startswith(
        "error: spec.generator.engineArguments.max-num-sqes: vLLM has no such option; did you mean"
    )
    assert not (tmp_path / "none").exists()


def test_a_role_that_dies_and_may_not_be_started_again(folder, tmp_path):
    finished, error = fail(
        folder,
        tmp_path / "run",
        "spec.reward.backoffLimit=0",
        RLHF_FAULTS="tests.support.faults:kill_reward_before_scoring",
    )
    assert "reward-0 was ended by SIGKILL" in error
    assert "logs/reward-0.log" in error
    assert_saved(finished, 1)


def test_an_error_of_the_program_in_each_start_ends_the_job_at_the_second(folder, tmp_path):
    finished, error = fail(
        folder, tmp_path / "run", *SFT, RLHF_FAULTS="tests.support.faults:refuse_second_step"
    )
    assert "RuntimeError: more than one element of the written-to tensor" in error
    assert "twice at step 1: another start would end the same" in error
    assert finished.status["restarts"] == 1
    assert_saved(finished, 1)


def test_a_model_without_embeddings_for_its_tokenizer(folder, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<more>", "<and more>"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    _, error = fail(folder, tmp_path / "run", *SFT, f"spec.model.tokenizer={tmp_path / 'tokenizer'}")
    assert re.search(
        r"spec\.model\.policy: the tokenizer has 260 tokens but the model has embeddings for 258", error
    )


def test_sequences_longer_than_the_model(folder, tmp_path):
    _, error = fail(folder, tmp_path / "run", *SFT, "spec.data.maxPromptLength=250")
    assert "spec.model.policy: sequences of up to 266 tokens do not fit a model with 256 positions" in error
    assert "lower" in error


def test_a_row_that_the_chat_template_refuses(folder, tmp_path):
    """Before the first step, and by `rlhf validate`; not at the step that would train on it."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]
    rows = [json.dumps({"messages": turns})] * 9 + [json.dumps({"messages": [turns[0], *turns]})]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "alternating.jinja").write_text(
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
        "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    given = (
        f"spec.data.train=[{tmp_path}/rows.jsonl]",
        f"spec.data.chatTemplate={tmp_path}/alternating.jinja",
    )
    finished, error = fail(folder, tmp_path / "run", *SFT, *given, "spec.data.maxPromptLength=64")
    assert f"{tmp_path}/rows.jsonl:10: messages: spec.data.chatTemplate: the template " in error
    assert 'refuses [{"role": "user", "content": "Hi"}, {"role": "user"' in error
    assert "TemplateError: alternate" in error
    assert "--resume" not in finished.output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    sets = (*SFT, f"spec.model.policy={folder / 'model'}", *given, "spec.data.maxPromptLength=64")
    arguments = [part for override in sets for part in ("--set", override)]
    validated = launch("validate", str(folder / "job.yaml"), *arguments)
    output, _ = validated.communicate(timeout=600)
    assert validated.returncode == 2
    assert output.partition("error: ")[2].strip() in error


def test_a_store_that_nobody_serves(folder, tmp_path):
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    there = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    _, error = fail(folder, tmp_path / "run", *SFT, "spec.checkpoint.store=s3://bucket/run", **keys, **there)
    assert "spec.checkpoint.store: cannot use s3://bucket/run: " in error
    assert "http://127.0.0.1:1/bucket" in error
    assert "AWS_ENDPOINT_URL" in error


def test_a_reference_that_is_no_model(folder, tmp_path):
    """Without a configuration or weights nothing is started; of weights that cannot be read the role that loads them
    says so."""
    (tmp_path / "empty").mkdir()
    given = ("spec.ppo.klCoefficient=0.1", f"spec.model.reference={tmp_path / 'empty'}")
    _, error = fail(folder, tmp_path / "none", *given)
    assert error.startswith("error: spec.model.reference: must be in Hugging Face format")
    assert not (tmp_path / "none").exists()
    for file in (folder / "model").iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / "empty" / file.name).write_bytes(file.read_bytes())
    _, error = fail(folder, tmp_path / "none", *given)
    assert error.startswith("error: spec.model.reference: has no weights")
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"no weights")
    _, error = fail(folder, tmp_path / "run", *given)
    assert f"spec.model.reference: cannot load '{tmp_path / 'empty'}'" in error
    assert "header too large" in error
