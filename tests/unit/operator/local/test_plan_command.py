"""`rlhf plan`: what it prints before a run and after one, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml
from tests.unit.api.manifests import document, job

from rlhf_api.contract.run import RunConfig
from rlhf_operator.cli import main

JOB = (
    *(
        "spec.model={policy: some/model, parameters: 1.0e9, dtype: bfloat16}",
        "spec.algorithm=sft",
        "spec.ppo={}",
    ),
    *("spec.reward={}", "spec.steps=10", "spec.data.promptsPerStep=4"),
    *("spec.data.maxPromptLength=50", "spec.data.maxResponseLength=50"),
)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document(*JOB)))
    return str(tmp_path / "job.yaml")


@pytest.fixture
def ran(tmp_path: Path) -> str:
    """The work directory of a run whose sequences had half of the tokens that they may have."""
    folder = tmp_path / "run"
    folder.mkdir()
    config = RunConfig(job="job", spec=job(*JOB).spec, workdir=str(folder))
    (folder / "run.json").write_text(config.model_dump_json(by_alias=True))
    seconds = [(90.0, 99.0), (2.0, 2.5), (2.0, 2.5)]
    rows = [
        {"step": i + 1, "tokens": 200, "train_seconds": t, "seconds": s} for i, (t, s) in enumerate(seconds)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_batches_and_seconds_before_a_run(manifest, capsys):
    lines = plan(capsys, manifest, "--flops", "1.2e12")
    assert lines[0] == "a step: 4 prompts x 1 = 4 sequences x 100 tokens, prompts included = 400 tokens"
    assert lines[1].startswith(
        "train: epochs 1 x updates 1 of 4 sequences; ranks 1 x micro-batches 1 or more of "
    )
    assert lines[-3:] == [
        "train                 2",  # 6 operations x 1e9 parameters x 400 tokens
        "step                  2",
        "10 steps: 20 s, without starting, evaluations and checkpoints",
    ]


def test_the_critics_updates_are_of_its_own_micro_batches(tmp_path, capsys):
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump(
            document(
                "spec.model.parameters=1.0e9",
                "spec.data={train: [a.jsonl], maxPromptLength: 500, promptsPerStep: 8}",
                "spec.sampling={maxNewTokens: 500}",
                "spec.trainer={microBatchTokens: 8000, criticMicroBatchTokens: 2000}",
            )
        )
    )
    _, policy, critic, *_ = plan(capsys, str(tmp_path / "job.yaml"))
    assert policy.endswith("micro-batches 1 or more of 8000 tokens")
    assert critic.endswith("micro-batches 4 or more of 2000 tokens")


LONG = "spec.data={train: [a.jsonl], promptsPerStep: 8, maxPromptLength: 100, maxResponseLength: 900}"
ROWS = [
    (("spec.algorithm=sft", "spec.ppo={}", "spec.reward={}"), 1000),
    (("spec.algorithm=dpo", "spec.ppo={}", "spec.reward={}"), 2000),
    (("spec.model.reward=r", "spec.ppo.minibatchSize=8", "spec.pretraining={data: [t.jsonl]}"), 1000),
]


@pytest.mark.parametrize(("overrides", "tokens"), ROWS)
def test_rows_longer_than_a_micro_batch_are_told(overrides, tokens, tmp_path, capsys):
    for budget in (tokens, tokens - 1):
        given = LONG, "spec.model.parameters=1.0e9", *overrides, f"spec.trainer.microBatchTokens={budget}"
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(document(*given)))
        lines = [line for line in plan(capsys, str(tmp_path / "job.yaml")) if "by itself" in line]
        words = f"a row of up to {tokens} tokens is a micro-batch by itself; of its activations {budget} are counted"
        assert lines == [words] * (budget < tokens)


def test_a_rate_that_is_missing_is_asked_for(manifest, capsys):
    *_, step, advice = plan(capsys, manifest)
    assert step.split() == ["step", "-"]
    assert advice.startswith("for the others give --flops, --memory, --link, or --measured DIR")


def test_a_run_tells_the_rates_of_its_machine_and_how_far_off_it_was(manifest, ran, capsys):
    """The first step does not count."""
    lines = plan(capsys, manifest, "--flops", "1.2e12", "--after", ran)
    assert [line.split() for line in lines[-4:-2]] == [
        ["train", "2", "2", "+0%"],
        ["step", "2", "2.5", "-20%"],
    ]
    assert lines[-1] == "it reached --flops 6e+11"
    lines = plan(capsys, manifest, "data.promptsPerStep=8", "--measured", ran)
    assert lines[0] == "a step: 8 prompts x 1 = 8 sequences x 50 tokens, prompts included = 400 tokens"
    assert lines[-3].split() == ["train", "4"], "twice the prompts take twice as long"


@pytest.mark.parametrize(
    ("override", "differs"),
    [
        ("data.promptsPerStep=8", "spec.data.promptsPerStep is 4 there and 8 here"),
        ("model.parameters=7.6e9", "spec.model.parameters is 1000000000.0 there and 7600000000.0 here"),
        ("algorithm=dpo", "spec.algorithm is 'sft' there and 'dpo' here"),
        ("trainer.gradientCheckpointing=full", "gradientCheckpointing is 'none' there and 'full' here"),
    ],
)
def test_a_run_of_another_job_is_not_compared(override, differs, manifest, ran, capsys):
    assert main(["plan", manifest, override, "--flops", "1.2e12", "--after", ran]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {ran}: is a run of another job, ")
    assert differs in captured.err


def test_fields_that_leave_a_steps_work_as_it_is_may_differ(manifest, ran, capsys):
    given = ("steps=20", "optimizer.learningRate=1e-5", "model.policy=other/model", "--after", ran)
    assert plan(capsys, manifest, *given)[-1] == "it reached --flops 6e+11"


def test_the_rate_of_broadcasts_is_that_of_steps_with_one(tmp_path, capsys):
    """With weights.everySteps 4, three of four steps broadcast nothing."""
    given = (
        "spec.model={policy: p, parameters: 1.0e9}",
        "spec.weights.everySteps=4",
        "spec.trainer.dtype=bfloat16",
    )
    config = RunConfig(job="job", spec=job(*given).spec, workdir=str(tmp_path))
    (tmp_path / "run.json").write_text(config.model_dump_json(by_alias=True))
    step = {"response_length_mean": 9, "train_seconds": 1.0, "seconds": 2.0}
    rows = [
        {**step, "broadcast_seconds": seconds, "broadcast_bytes": 2e9 * (seconds == 0.5)}
        for seconds in (1e-5, 1e-5, 1e-5, 0.5, 1e-5)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document(*given)))
    lines = plan(capsys, str(tmp_path / "job.yaml"), "--after", str(tmp_path))
    assert "--link 4e+09" in lines[-1]


def test_replies_of_an_environment_are_tokens_of_what_was_measured(tmp_path, capsys):
    """The same work, whether the policy sampled the tokens or an environment replied with them."""
    given = ("spec.model={policy: p, parameters: 1.0e9}", "spec.trainer.dtype=bfloat16")
    config = RunConfig(job="job", spec=job(*given).spec, workdir=str(tmp_path))
    (tmp_path / "run.json").write_text(config.model_dump_json(by_alias=True))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document(*given)))
    step = {"train_seconds": 1.0, "seconds": 2.0, "broadcast_seconds": 0.5, "broadcast_bytes": 2e9}
    plans = []
    for lengths in ({"response_length_mean": 90}, {"response_length_mean": 9, "context_tokens_mean": 81}):
        (tmp_path / "metrics.jsonl").write_text((json.dumps(step | lengths) + "\n") * 5)
        plans.append(plan(capsys, str(tmp_path / "job.yaml"), "--after", str(tmp_path)))
    assert plans[0] == plans[1]


def test_a_run_of_an_earlier_release_may_have_fields_that_are_no_more(manifest, ran, capsys):
    of_now = plan(capsys, manifest, "--after", ran)
    file = Path(ran, "run.json")
    body = json.loads(file.read_text())
    body["spec"]["replay"]["relaySampleFn"] = None
    file.write_text(json.dumps(body))
    assert plan(capsys, manifest, "--after", ran) == of_now


def test_a_torn_last_line_of_metrics_is_left_out(manifest, ran, capsys):
    whole = plan(capsys, manifest, "--after", ran)
    with Path(ran, "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 4, "tok')  # of a run that writes it now, or was killed
    assert plan(capsys, manifest, "--after", ran) == whole


def test_what_is_no_run_and_no_rate_is_refused(manifest, tmp_path, capsys):
    assert main(["plan", manifest, "--after", str(tmp_path)]) == 2
    assert f"error: {tmp_path}: holds no run that can be read: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["plan", manifest, "--flops", "-1"])
    assert "must be a number above 0, such as 4e14; got '-1'" in capsys.readouterr().err
