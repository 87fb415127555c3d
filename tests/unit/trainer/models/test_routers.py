"""Routers of real families: which are recorded, and of which the load can be balanced."""

import re

import pytest
import torch
from tests.unit.trainer.models.choosing import choosing
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.models.balance import check_balanced
from rlhf_trainer.models.forward.efficiency import recompute
from rlhf_trainer.models.forward.routers import Routers, check_replayed
from rlhf_trainer.tensors.expert_rows import ExpertsShape

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
FAMILIES = {
    **{name: {"num_experts": 4} for name in ("qwen3_moe", "qwen2_moe", "olmoe")},
    **{name: {"num_local_experts": 4} for name in ("mixtral", "gpt_oss", "granitemoe")},
    "glm4_moe": {"n_routed_experts": 4, "first_k_dense_replace": 0},
}
BY_BIAS = ("glm4_moe",)


def made(family: str, **own):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SHAPE | FAMILIES.get(family, {}) | own)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_routers_of_each_layer_are_recorded_with_what_they_chose(family):
    model = made(family)
    routers = Routers.of(model)
    with routers.recording() as routings:
        model(torch.arange(1, 8)[None])
    assert [tuple(each.logits.shape) for each in routings] == [(7, 4)] * 2
    for each in routings:
        assert each.chosen.shape == (7, 2)
        if family not in BY_BIAS:
            assert torch.equal(each.chosen.sort().values, each.logits.topk(2).indices.sort().values)
    model(torch.arange(1, 8)[None])
    assert len(routings) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_load_is_balanced_where_routers_are_trained_by_probabilities(family):
    model = made(family)
    if family not in BY_BIAS:
        return check_balanced(model, Routers.of(model))
    with pytest.raises(InvalidJob, match=rf"balanceCoefficient: needs .*, which {type(model).__name__} has"):
        check_balanced(model, Routers.of(model))
    return None


REPLAYED = [family for family in FAMILIES if family not in BY_BIAS]


@pytest.mark.parametrize("family", REPLAYED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_replayed_experts_are_those_of_another_pass_with_the_weights_of_this_one(family, dtype):
    """Against the family's own code, with its choice alone taken from it."""
    model, tokens = made(family).to(dtype), torch.arange(1, 8)[None]
    routers = Routers.of(model)
    assert routers.can_replay
    choices = torch.stack([torch.stack([torch.randperm(4)[:2] for _ in range(7)]) for _ in range(2)], dim=1)
    with routers.replaying(choices.to(torch.int16)), routers.recording() as routings:
        replayed = model(tokens).logits
    assert torch.equal(torch.stack([each.chosen for each in routings], dim=1), choices)
    own = model(tokens).logits
    with choosing(choices):
        expected = model(tokens).logits
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(replayed, expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    assert not torch.allclose(replayed, own, rtol=0, atol=1e-2 * float(own.abs().max()))


@pytest.mark.parametrize("family", REPLAYED)
@pytest.mark.parametrize("recomputed", [False, True])
def test_the_gradient_of_replayed_experts_reaches_the_router_by_their_weights(family, recomputed):
    """Against the family's own code, as above; a layer that is computed again replays the same."""
    tokens, gradients = torch.arange(1, 8)[None], []
    choices = torch.stack([torch.stack([torch.randperm(4)[:2] for _ in range(7)]) for _ in range(2)], dim=1)
    for replayed in (True, False):
        model = made(family)
        if recomputed and replayed:
            recompute(model, Trainer(gradientCheckpointing="full").gradient_checkpointing)
        with Routers.of(model).replaying(choices.to(torch.int16)) if replayed else choosing(choices):
            model(tokens, use_cache=False).logits.logsumexp(-1).sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-5)
    routers = [name for name in gradients[0] if re.search(r"\.(gate|router|router\.layer)\.weight", name)]
    assert len(routers) == 2
    assert all(gradients[0][name].abs().sum() > 0 for name in routers)


@pytest.mark.parametrize("family", REPLAYED)
def test_replaying_a_passs_own_choices_or_none_changes_nothing(family):
    model, tokens = made(family), torch.arange(1, 8)[None]
    routers = Routers.of(model)
    with routers.recording() as routings:
        own = model(tokens).logits
    choices = torch.stack([each.chosen for each in routings], dim=1).to(torch.int16)
    for replayed in (choices, torch.full_like(choices, -1)):
        with routers.replaying(replayed):
            torch.testing.assert_close(model(tokens).logits, own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "own", "of_engine", "says"),
    [
        (
            "glm4_moe",
            {},
            False,
            "needs routers whose weights are a softmax, which Glm4MoeForCausalLM has not",
        ),
        ("llama", {}, False, "needs a mixture of experts, which LlamaForCausalLM is not"),
        (
            "qwen3_moe",
            {"mlp_only_layers": [0]},
            True,
            "needs experts in every layer of Qwen3MoeForCausalLM, and 1 of 2 have some",
        ),
    ],
)
def test_a_model_that_cannot_replay_is_refused(family, own, of_engine, says):
    model = made(family, **own)
    with pytest.raises(InvalidJob, match=f"spec.experts.replay: {says}"):
        check_replayed(model, Routers.of(model), of_engine=of_engine)


@pytest.mark.parametrize("family", REPLAYED)
def test_a_mixture_tells_the_shape_of_its_choices(family):
    model = made(family)
    assert Routers.of(model).shape == ExpertsShape(layers=2, chosen=2, experts=4)
    check_replayed(model, Routers.of(model), of_engine=True)


def test_a_dense_model_has_no_routers_and_no_balance():
    model = made("llama")
    assert Routers.of(model) is None
    with pytest.raises(InvalidJob, match=r"spec.experts.balanceCoefficient: .* LlamaForCausalLM has not"):
        check_balanced(model, None)


def test_a_layer_that_is_computed_again_is_recorded_once_and_its_logits_have_a_gradient():
    model = made("qwen3_moe")
    recompute(model, Trainer(gradientCheckpointing="full").gradient_checkpointing)
    routers = Routers.of(model)
    with routers.recording() as routings:
        model(torch.arange(1, 8)[None])
    sum(each.logits.float().logsumexp(-1).sum() for each in routings).backward()
    assert len(routings) == 2
    assert all(layer.mlp.gate.weight.grad.abs().sum() > 0 for layer in model.model.layers)
