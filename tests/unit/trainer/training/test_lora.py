"""Training of adapters: only they change, the reference is the model without them, and a run goes on exactly."""

import statistics

import pytest
import torch
from peft import PeftModel
from tests.unit.api.manifests import job, refusals
from tests.unit.trainer.replay.ppo_worker import engine
from tests.unit.trainer.training.running import Job, resumed_is_whole
from transformers import AutoModelForSequenceClassification, LlamaForCausalLM, LlamaForSequenceClassification

from rlhf_api.contract.run import roles_of
from rlhf_api.dataset.rows import AnswerRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import Role
from rlhf_api.sections.lora import Lora
from rlhf_trainer.export.model_files import save_model

POLICY = "spec.model.lora={policy: {rank: 4}}"
DECOMPOSED = "spec.model.lora={policy: {rank: 4, weightDecomposed: true}}"
BOTH = "spec.model.lora={policy: {rank: 4}, critic: {rank: 2, alpha: 4, targetModules: [q_proj]}}"


SHARP = ("spec.sampling.temperature=0.1", "spec.optimizer.learningRate=0.03")
"""The head, which stays as it is, is small and random: it tells tokens apart by little."""
ROWS = {"sft": [AnswerRow(prompt=f"p{i}", answer="good") for i in range(10)]}


def nobody(*_: object) -> torch.Tensor:
    raise AssertionError("the reference is the policy itself")


def frozen(model) -> dict[str, torch.Tensor]:
    return {n: p.clone() for n, p in model.unwrapped.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize(("lora", "rise"), [(POLICY, 0.15), (DECOMPOSED, 0.05)])
def test_the_reward_rises_and_the_base_stays_as_it_is(lora, rise):
    run = Job("grpo", "klCoefficient: 0.01", lora, *SHARP, refer=nobody)
    policy = run.models["policy"]
    before, whole = frozen(policy), dict(policy.named_tensors())
    run.steps(0, 12)
    rewards = [line["reward_mean"] for line in run.lines]
    assert statistics.fmean(rewards[-2:]) > statistics.fmean(rewards[:2]) + rise, rewards
    assert run.lines[0]["kl_mean"] == pytest.approx(0.0, abs=1e-6), "the policy is the reference"
    assert run.lines[-1]["kl_mean"] > 0
    assert run.lines[0]["ratio_mean"] == pytest.approx(1.0, rel=1e-6)
    assert all(line["logprob_difference"] < 1e-4 for line in run.lines)
    assert all(torch.equal(tensor, before[name]) for name, tensor in frozen(policy).items())
    changed = {name for name, tensor in policy.named_tensors() if not torch.equal(tensor, whole[name])}
    assert changed == {name for name in whole if "_proj." in name}
    with policy.adapter_off():
        bare = policy.unwrapped(torch.tensor([[5, 6, 7]])).logits
    torch.testing.assert_close(bare, run.initial(torch.tensor([[5, 6, 7]])).logits, rtol=0, atol=0)


def test_a_dpo_margin_rises_from_the_reference():
    run = Job("dpo", "beta: 0.1", POLICY, refer=nobody).steps(0, 6)
    assert run.lines[0]["reward_margin"] == pytest.approx(0.0, abs=1e-6)
    assert run.lines[-1]["reward_margin"] > 0.05


def test_a_reward_model_is_its_base_with_an_adapter_and_a_head(tmp_path):
    run = Job("reward", "", "spec.model.lora={policy: {rank: 4}}")
    model = run.models["model"]
    before, head = frozen(model), model.unwrapped.score.weight.detach().clone()
    run.steps(0, 6)
    assert run.lines[-1]["loss"] < run.lines[0]["loss"] - 0.2
    assert run.lines[-1]["accuracy"] == 1.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in frozen(model).items())
    assert not torch.equal(model.unwrapped.score.weight, head)

    save_model(model, run.ctx.tokenizer, tmp_path / "policy")
    (tmp_path / "usual").touch()
    for folder in ("policy", "policy-adapter"):
        modes = {file.stat().st_mode for file in (tmp_path / folder).iterdir()}
        assert modes == {(tmp_path / "usual").stat().st_mode}, (
            "whoever may read what this user makes may read these"
        )
    ids = torch.tensor([run.ctx.tokenizer(text).input_ids for text in ("p1good<eos>", "p1evil<eos>")])
    trained = model.unwrapped(ids).logits
    assert trained[0] > trained[1]
    alone = AutoModelForSequenceClassification.from_pretrained(tmp_path / "policy")
    torch.testing.assert_close(alone(ids).logits, trained, rtol=0, atol=1e-5)
    torch.manual_seed(9)
    base = LlamaForSequenceClassification(run.initial.config)
    base.load_state_dict(
        {name.replace(".base_layer.", "."): tensor for name, tensor in before.items()}, strict=False
    )
    beside = PeftModel.from_pretrained(base, tmp_path / "policy-adapter").eval()
    torch.testing.assert_close(beside(ids).logits, trained, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "settings", "lora"),
    [
        ("ppo", "minibatchSize: 16", BOTH),
        ("sft", "", POLICY),
        ("reward", "", POLICY),
        ("dpo", "", POLICY),
        ("dpo", "", DECOMPOSED),
    ],
)
def test_a_resumed_run_is_bit_for_bit_the_whole_one(algorithm, settings, lora):
    run = resumed_is_whole(
        lambda: Job(algorithm, settings, lora, refer=nobody, rows=ROWS.get(algorithm)), 1, 3
    )
    for name, group in run.task.groups().items():
        trained = sum(p.requires_grad for _, p in run.models[name].unwrapped.named_parameters())
        assert sum(key.startswith("parameters/") for key, _ in group) == trained


CHANGES = [
    ("spec.model.lora={policy: {rank: 8}}", "rank was 4 and is 8, alpha was 4.0 and is 8.0"),
    ("spec.model.lora={policy: {rank: 4, alpha: 8}}", "alpha was 4.0 and is 8.0"),
    ("spec.model.lora={policy: {rank: 4, targetModules: [q_proj]}}", "and is ['q_proj']"),
    (
        "spec.model.lora={policy: {rank: 4, alpha: 4, rankStabilized: true}}",
        "rankStabilized was False and is True",
    ),
    (DECOMPOSED, "weightDecomposed was False and is True"),
    ("spec.model.lora=null", "with an adapter, and the job has none"),
]


@pytest.mark.parametrize(("now", "says"), CHANGES)
def test_a_run_does_not_go_on_with_another_adapter(now, says):
    snapshot = Job("grpo", "klCoefficient: 0", POLICY).snapshot(0)
    with pytest.raises(InvalidJob, match="put it back, or start anew") as caught:
        Job("grpo", "klCoefficient: 0", now).restore(snapshot)
    assert caught.value.problems[0].where == "spec.model.lora.policy"
    assert says in str(caught.value)


def test_a_run_does_not_go_on_with_another_base():
    run = Job("grpo", "klCoefficient: 0", POLICY)
    snapshot = run.snapshot(0)
    adapter = run.models["policy"].adapter
    adapter.fingerprint = {**adapter.fingerprint, "base": "another"}
    with pytest.raises(InvalidJob, match="the base weights it was trained on have changed"):
        run.restore(snapshot)


REFUSED = [
    (("spec.model.lora={}",), "spec.model.lora", "names no model"),
    (
        ("spec.model.lora={policy: {rank: 0}}",),
        "spec.model.lora.policy.rank",
        "greater than or equal to 1; got 0",
    ),
    (("spec.model.lora={policy: {alpha: 0}}",), "spec.model.lora.policy.alpha", "greater than 0"),
    (
        ("spec.model.lora={policy: {rankStabilized: true}}",),
        *("spec.model.lora.policy.rankStabilized", "without one the scale is 1 either way; set alpha"),
    ),
    (("spec.model.lora={policy: {dropout: 0.1}}",), "spec.model.lora.policy.dropout", "unknown field"),
    (("spec.ppo={}", "spec.algorithm=sft", BOTH), "spec.model.lora.critic", "sft trains no critic"),
    (
        ("spec.ppo={referenceEma: 0.9}", POLICY),
        "spec.model.lora.policy",
        "remove it, or referenceEma or valueEma",
    ),
    (("spec.ppo={valueEma: 0.9}", BOTH), "spec.model.lora.critic", "a moving average of the critic"),
]


@pytest.mark.parametrize(("overrides", "where", "says"), REFUSED)
def test_an_adapter_without_effect_is_refused(overrides, where, says):
    assert says in refusals(*overrides)[where]


def test_a_reference_that_is_named_is_a_role():
    assert Role.REFERENCE not in roles_of(job(POLICY).spec)
    assert Role.REFERENCE in roles_of(job(POLICY, "spec.model.reference=another").spec)
    assert Role.REFERENCE in roles_of(job("spec.model.lora={critic: {}}").spec)


def test_a_layer_that_is_not_there_is_named():
    for name in ("w_proj", "lm_head", "embed_tokens", "proj"):
        with pytest.raises(
            ValueError, match=f"is named '{name}'; it has down_proj, gate_proj, k_proj, o_proj, q_proj"
        ):
            engine(LlamaForCausalLM, 2, 0.0, Lora.model_validate({"targetModules": ("q_proj", name)}))
