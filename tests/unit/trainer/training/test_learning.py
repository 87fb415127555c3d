"""Each algorithm trains a tiny real model: its reward rises, or its margin, from the same seeds every time."""

import math
import statistics

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from tests.unit.trainer.training.running import Job
from torch import Tensor

from rlhf_api.dataset.rows import LabeledRow, StepsRow
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.ops import compute
from rlhf_trainer.tensors.batches import MicroBatch, plan
from rlhf_trainer.tensors.records import Sequences

STEPS = 12
ALGORITHMS = [
    ("ppo", "klCoefficient: 0.01, minibatchSize: 16"),
    ("grpo", "klCoefficient: 0"),
    ("grpo", "klCoefficient: 0.01, minibatchSize: 16, epochs: 2"),
    ("grpo", "klCoefficient: 0, standardDeviation: batch"),
    ("grpo", "klCoefficient: 0, topEntropy: 0.8"),
    ("dr_grpo", "klCoefficient: 0.01"),
    ("rloo", "klCoefficient: 0.01"),
    ("reinforce_pp", "klCoefficient: 0.01"),
    ("reinforce_pp", "klCoefficient: 0.01, groupBaseline: true"),
    ("gspo", "klCoefficient: 0, minibatchSize: 16, clipRatio: 0.2, clipRatioHigh: 0.3"),
    ("cispo", "klCoefficient: 0, minibatchSize: 16"),
    ("online_dpo", "minibatchSize: 16"),
    ("distillation", "klCoefficient: 0.01"),
]


@pytest.mark.parametrize(("algorithm", "settings"), ALGORITHMS)
def test_the_reward_rises(algorithm, settings):
    """From the half of a model that knows nothing."""
    job = Job(algorithm, settings).steps(0, STEPS)
    rewards = [line["reward_mean"] for line in job.lines]
    assert statistics.fmean(rewards[:2]) < 0.65
    assert statistics.fmean(rewards[-2:]) > statistics.fmean(rewards[:2]) + 0.15, rewards
    assert job.ledger().lost == 0
    assert len(job.positions("trained")) == 8 * STEPS
    assert ("kl_mean" in job.lines[-1]) == ("klCoefficient: 0," not in settings + ",")


def towards_low_tokens(sequences: Sequences, _rows: object) -> Tensor:
    """A teacher's log-probabilities: of the 258 tokens, those below 128 are nine times as probable as the others."""
    tokens = torch.cat([sequences.row(i)[n:] for i, n in enumerate(sequences.prompt_lengths.tolist())])
    each = 1 / (9 * 128 + 130)
    return torch.where(tokens < 128, math.log(9 * each), math.log(each))


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "gamma: 1.0, minibatchSize: 16",
        "klIn: loss, klEstimator: k2",
        "klIn: loss, klEstimator: k3",
    ],
)
def test_a_student_nears_its_teacher_without_any_reward(settings):
    """Its divergence halves, and no metric is of a reward."""
    alone = ("spec.model.reward=null", "spec.reward={}")
    job = Job("distillation", settings, *alone, refer=towards_low_tokens).steps(0, 2 * STEPS)
    divergences = [line["kl_mean"] for line in job.lines]
    assert statistics.fmean(divergences[-3:]) < statistics.fmean(divergences[:3]) / 2, divergences
    assert not any("reward" in name or "groups" in name for name in job.lines[-1])


def most_probable(sequences: Sequences, _rows: object) -> Tensor:
    """The 128 most probable tokens of `towards_low_tokens`, with their ids."""
    count = int(sequences.response_lengths.sum())
    each = torch.full((count, 128), math.log(9 / (9 * 128 + 130)))
    return torch.cat([each, torch.arange(128.0).expand(count, 128)], dim=-1)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_student_nears_its_teacher_over_the_most_probable_tokens(beta):
    """Its divergence halves, and no metric is of a reward."""
    alone = ("spec.model.reward=null", "spec.reward={}")
    settings = f"minibatchSize: 16, epochs: 2, teacherTopK: 128, beta: {beta}"
    job = Job("distillation", settings, *alone, refer=most_probable).steps(0, STEPS)
    divergences = [line["kl_mean"] for line in job.lines]
    assert divergences[-1] < divergences[0] / 2, divergences
    assert not any("reward" in name or "groups" in name for name in job.lines[-1])


@pytest.mark.parametrize("settings", ["beta: 0.1", "beta: 0.1, labelSmoothing: 0.1", "beta: 0.1, loss: ipo"])
def test_the_margin_rises(settings):
    job = Job("dpo", settings).steps(0, STEPS)
    first, last = job.lines[0], job.lines[-1]
    assert first["reward_margin"] == pytest.approx(0.0, abs=1e-6), "the policy is the reference"
    assert first["chosen_reward"] == pytest.approx(0.0, abs=1e-6)
    assert last["reward_margin"] > 0.1
    assert last["accuracy"] == 1.0
    assert last["loss"] < first["loss"]


LABELED = [
    LabeledRow(prompt=f"p{i}", answer="good" if good else "evil", label=good)
    for i in range(10)
    for good in (True, False)
]


@pytest.mark.parametrize("settings", ["", "beta: 0.5, desirableWeight: 1.3"])
def test_desirable_answers_become_more_probable_and_others_less(settings):
    job = Job("kto", settings, rows=LABELED).steps(0, STEPS)
    first, last = job.lines[0], job.lines[-1]
    mean = 0.5 if not settings else 0.5 * (1.3 + 1.0) / 2
    assert first["loss"] == pytest.approx(mean, abs=0.1), "the policy is the reference"
    assert first["kl_baseline"] == pytest.approx(0.0, abs=1e-6)
    assert last["chosen_reward"] > 0.1 > -0.1 > last["rejected_reward"]
    assert last["loss"] < first["loss"] - 0.1


STEPWISE = [
    StepsRow(prompt=f"p{i}", steps=["one", "two" if right else "axe", "six"], labels=[True, right, right])
    for i in range(10)
    for right in (True, False)
]


def test_steps_are_judged_by_what_stands_in_them():
    """The last step reads alike in all rows: it is wrong after a wrong one."""
    job = Job("process_reward", "", rows=STEPWISE, held_out={"held": STEPWISE}).steps(0, STEPS)
    first, last = job.lines[0], job.lines[-1]
    assert last["loss"] < first["loss"] / 3
    assert last["accuracy"] == pytest.approx(1.0)
    assert last["right_step_score"] > 0.8 > 0.2 > last["wrong_step_score"]
    (line,) = job.task.evaluate(STEPS)
    assert line["accuracy"] == pytest.approx(1.0)
    assert line["count"] == len(STEPWISE)


def test_the_estimate_is_of_the_next_answer_to_each_prompt():
    """Of a step, by plain forward passes of text that is put together here."""
    job = Job("kto", "", "spec.data.promptsPerStep=4", rows=LABELED).steps(0, 6)
    job.task.collect(6)
    batch = job.task._batch
    tokenizer, sequences, total = byte_tokenizer(), batch.sequences, 0.0
    assert batch["label"].tolist()[4:] == [0.0] * 4
    for i in range(4):
        prompt = sequences.row(i)[: sequences.prompt_lengths[i]]
        answer = sequences.row((i + 1) % 4)[sequences.prompt_lengths[(i + 1) % 4] :]
        assert tokenizer.decode(answer, skip_special_tokens=True) in ("good", "evil")
        tokens = torch.cat([prompt, answer])[None]
        for model, sign in ((job.models["policy"].unwrapped, 1), (job.initial, -1)):
            with torch.no_grad():
                logprobs = model(tokens).logits[0].log_softmax(-1)
            own = logprobs[len(prompt) - 1 : -1].gather(-1, answer[:, None])
            total += sign * float(own.double().sum())
    assert batch["kl_baseline"].tolist() == pytest.approx([max(0.0, total / 4)] * 8, abs=1e-4)
    assert abs(total) > 1e-2


@pytest.mark.parametrize("settings", ["loss: simpo, margin: 1.0", "loss: orpo, beta: 0.5"])
def test_the_margin_rises_without_a_reference(settings):
    def nobody(*_: object):
        raise AssertionError("a reference was asked")

    job = Job("dpo", settings, refer=nobody).steps(0, STEPS)
    first, last = job.lines[0], job.lines[-1]
    assert last["reward_margin"] > first["reward_margin"] + 0.1
    assert last["accuracy"] == 1.0
    assert last["loss"] < first["loss"]


def test_the_same_seeds_give_the_same_weights():
    one, other = (Job("grpo", "klCoefficient: 0.01").steps(0, 2) for _ in range(2))
    assert one.weights() == other.weights()


def test_with_one_update_a_step_the_policy_is_the_one_that_sampled():
    """No log-probabilities are computed before the update, and the ratio is exactly 1."""
    job = Job("grpo", "klCoefficient: 0.01")
    for step in range(3):
        job.task.publish(step)
        job.task.collect(step)
        assert "logprobs" not in job.task._pending.columns
        line = job.task.train(step)
        assert line["update_kl"] == line["clip_fraction"] == 0.0
        assert line["ratio_mean"] == pytest.approx(1.0, rel=1e-6)
        assert line["logprob_difference"] < 1e-4, (
            "generation and training differ in rounding alone, if at all"
        )
    two = Job("grpo", "klCoefficient: 0.01, minibatchSize: 16").steps(0, 2).lines
    assert all(line["update_kl"] > 0 for line in two), "the second update meets another policy"


def test_coefficients_of_a_penalty_hold_the_policy_back():
    free, held = (
        Job("rloo", f"klCoefficient: {coefficient}").steps(0, STEPS).lines for coefficient in (0.001, 2)
    )
    assert held[-1]["kl_mean"] < free[-1]["kl_mean"]


def test_entropies_are_those_of_the_policy_before_the_step():
    job = Job("grpo", "klCoefficient: 0, topEntropy: 0.25")
    job.task.publish(0)
    job.task.collect(0)
    columns, model = job.task._pending.columns, job.models["policy"]
    both = ResponseLogprobs(job.spec.sampling.temperature, entropy="value")
    (rows,) = plan(columns.sequences.lengths.tolist(), 1, 10_000)[0]
    micro = MicroBatch.build(columns.sequences, rows, pad_token_id=0)
    with torch.no_grad():
        logits = model.unwrapped(input_ids=micro.input_ids, attention_mask=micro.attention_mask).logits
        entropies = torch.zeros(len(columns["entropies"]))
        entropies[micro.response_index] = both(logits, micro)[:, 1]
    torch.testing.assert_close(columns["entropies"], entropies, rtol=1e-4, atol=1e-5)
    top = columns["entropies"][columns["entropy_mask"]]
    assert len(top) == math.ceil(0.25 * len(entropies))
    assert top.min() >= columns["entropies"][~columns["entropy_mask"]].max()


def test_operations_are_those_of_the_table():
    """The advantages in an episode are the algorithm's function of its rewards."""
    job = Job("rloo", "klCoefficient: 0")
    job.task.publish(0)
    job.task.collect(0)
    columns = job.task._pending.columns
    again = compute.rloo(columns.with_rows(response_rewards=columns["scores"]), job.op_ctx)
    assert again["advantages"].tolist() == columns["advantages"].tolist()
