"""DeepSpeed's batching keys and `auto` in a manifest's file: our fields, or the sums that contradict them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.manifests import document

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import composed, load

RANKS = "spec.trainer.processesPerReplica=8"


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Writes a manifest whose DeepSpeed sections are these, and returns its spec as it is submitted."""

    def spec(deepspeed: dict[str, Any], *overrides: str, section: str = "deepspeed") -> dict[str, Any]:
        whole = document(*overrides)
        del whole["spec"]["ppo"]["minibatchSize"]
        whole["spec"].setdefault("trainer", {})[section] = deepspeed
        (tmp_path / "job.yaml").write_text(json.dumps(whole))
        composed_spec: dict[str, Any] = composed(tmp_path / "job.yaml")["spec"]
        load(tmp_path / "job.yaml")
        return composed_spec

    return spec


BIG = ("spec.data.promptsPerStep=512", RANKS)


def test_samples_of_an_update_are_the_minibatch(made):
    spec = made({"train_batch_size": 32}, *BIG)
    assert spec["ppo"]["minibatchSize"] == 32
    assert spec["trainer"]["deepspeed"] == {}


def test_two_of_the_three_give_the_third(made):
    """512 + 256 tokens are the longest sequence."""
    both = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    spec = made(both, *BIG)
    assert (spec["ppo"]["minibatchSize"], spec["trainer"]["microBatchTokens"]) == (64, 2 * 768)
    spec = made({"train_batch_size": 64, "gradient_accumulation_steps": 4}, *BIG)
    assert (spec["ppo"]["minibatchSize"], spec["trainer"]["microBatchTokens"]) == (64, 2 * 768)
    assert made({**both, "train_batch_size": 64}, *BIG) == spec, "which agree"
    shared = made(both, *BIG, "spec.trainer.sequenceParallelSize=2")
    assert (shared["ppo"]["minibatchSize"], shared["trainer"]["microBatchTokens"]) == (32, 768)


def test_the_critics_are_its_own(made):
    keys = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1}
    spec = made(keys, "spec.data.promptsPerStep=64", section="criticDeepspeed")
    assert (spec["ppo"]["valueMinibatchSize"], spec["trainer"]["criticMicroBatchTokens"]) == (16, 768)


def test_given_responses_have_the_rows_of_a_step(made):
    keys = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}
    for algorithm, sequences in (("sft", 2), ("dpo", 4)):
        spec = made(keys, f"spec.algorithm={algorithm}", "spec.data.promptsPerStep=null")
        assert (spec["data"]["promptsPerStep"], spec["trainer"]["microBatchTokens"]) == (32, sequences * 1024)


def test_auto_is_what_is_left_out(made):
    spec = made(
        {
            **dict.fromkeys(("train_batch_size", "gradient_accumulation_steps", "gradient_clipping"), "auto"),
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "overlap_comm": True},
        },
        "spec.data.promptsPerStep=64",
    )
    assert spec["trainer"]["deepspeed"] == {
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": 3, "overlap_comm": True},
    }
    assert "minibatchSize" not in spec["ppo"]


@pytest.mark.parametrize(
    ("keys", "overrides", "message"),
    [
        (
            {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8},
            (),
            "train_batch_size: must equal 2 samples x 8 steps x 8 data-parallel ranks = 128; got 64",
        ),
        (
            {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8},
            ("spec.ppo.valueMinibatchSize=8", "spec.trainer.microBatchTokens=4096"),
            "train_micro_batch_size_per_gpu: 2 sequences of up to 768 tokens are 1536 tokens of a rank, and "
            "spec.trainer.microBatchTokens is 4096; make them equal, or remove one",
        ),
        (
            {"train_batch_size": 100, "gradient_accumulation_steps": 8},
            (),
            "gradient_accumulation_steps: 100 samples are not divisible by 8 steps x 8 data-parallel ranks; use "
            "another train_batch_size; got 8",
        ),
        (
            {"gradient_accumulation_steps": 8},
            (),
            "gradient_accumulation_steps: follows from the others: give train_batch_size or "
            "train_micro_batch_size_per_gpu too, or remove this; got 8",
        ),
        (
            {"train_batch_size": "64"},
            (),
            "train_batch_size: must be a whole number from 1 on, or auto; got '64'",
        ),
        (
            {"train_batch_size": True},
            (),
            "train_batch_size: must be a whole number from 1 on, or auto; got true",
        ),
    ],
)
def test_contradictions_are_told_with_the_sums_and_with_all_other_mistakes(made, keys, overrides, message):
    with pytest.raises(InvalidJob) as caught:
        made(keys, *BIG, *overrides, "spec.sampling.topp=1")
    reported = list(map(str, caught.value.problems))
    assert f"spec.trainer.deepspeed.{message}" in reported
    assert any(problem.startswith("spec.sampling.topp: unknown field") for problem in reported)


def test_an_algorithm_of_ones_own_has_minibatches_of_its_own(made):
    with pytest.raises(InvalidJob, match="train_batch_size: is set by the job; use"):
        made({"train_batch_size": 64}, "spec.algorithm=a:b")


def test_a_wrong_value_in_the_way_is_told_by_itself(made):
    with pytest.raises(InvalidJob) as caught:
        made({"train_batch_size": 64}, *BIG, "spec.grpo=3")
    assert [problem.where for problem in caught.value.problems] == ["spec.grpo"]
    with pytest.raises(InvalidJob, match=r"^spec\.data\.chatTemplate: "):
        made({"train_batch_size": 64}, *BIG, "spec.data.chatTemplate=3")
