"""Muon's groups: which parameters it has, and that a step is that of torch's own."""

import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen3MoeConfig,
)

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.models.muon import has_momentum, make_muon

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
ADAM = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
GPT2 = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16)


@pytest.fixture(autouse=True)
def _eagerly():
    with torch.compiler.set_stance("force_eager"):
        yield


def llama(**own: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE, **own))


@pytest.mark.parametrize("tied", [False, True])
def test_steps_are_those_of_torch_s_muon_and_adamw(tied):
    """torch.optim.Muon with `match_rms_adamw`, of which the updates of hidden matrices alone are in bfloat16."""
    own, model = llama(tie_word_embeddings=tied), llama(tie_word_embeddings=tied)
    muon = make_muon(model, ADAM)
    named = dict(own.named_parameters())
    hidden = [p for name, p in named.items() if "_proj." in name]
    rest = [p for name, p in named.items() if "_proj." not in name]
    both = [
        torch.optim.Muon(hidden, lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [
                {"params": [p for p in rest if p.ndim == 2], "weight_decay": 0.1},
                {"params": [p for p in rest if p.ndim == 1], "weight_decay": 0.0},
            ],
            **{key: value for key, value in ADAM.items() if key != "weight_decay"},
        ),
    ]
    before = {name: p.detach().clone() for name, p in named.items()}
    for step in range(3):
        for group in muon.param_groups:
            group["lr"] = 0.01 * group.get("rate_factor", 1.0)
        for name, parameter in model.named_parameters():
            gradient = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
            parameter.grad, named[name].grad = gradient.clone(), gradient.clone()
        for optimizer in (muon, *both):
            optimizer.step()
    for name, parameter in model.named_parameters():
        change = (named[name] - before[name]).abs().mean()
        apart = (parameter - named[name]).abs().mean()
        assert change > 0.002
        assert apart < (0.05 * change if "_proj." in name else 1e-7), name
        momentum = next(
            (
                state["momentum_buffer"]
                for p, state in muon.state.items()
                if p is parameter and has_momentum(p)
            ),
            None,
        )
        if momentum is not None:
            torch.testing.assert_close(momentum, both[0].state[named[name]]["momentum_buffer"])


def test_an_update_is_orthogonal_with_the_size_of_one_of_adamw():
    """Equation 4 of arXiv:2502.16982: of singular values near 1, times 0.2 sqrt(max(out, in)), whose root mean square
    is near 0.2."""
    model = llama()
    muon = make_muon(model, {**ADAM, "weight_decay": 0.0})
    for group in muon.param_groups:
        group["lr"] = group.get("rate_factor", 1.0)
    layer = model.model.layers[0].mlp.up_proj.weight
    before = layer.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    muon.step()
    update = before - layer.detach()
    values = torch.linalg.svdvals(update) / (0.2 * math.sqrt(80))
    assert values.min() > 0.5
    assert values.max() < 1.5
    assert 0.1 < update.pow(2).mean().sqrt() < 0.3


@pytest.mark.parametrize(
    ("model", "has"),
    [
        (llama(), {"q", "k", "v", "o", "gate", "up", "down"}),
        (AutoModelForCausalLM.from_config(GPT2), {"attn.c_attn", "attn.c", "mlp.c_fc", "mlp.c"}),
        (LlamaForSequenceClassification(LlamaConfig(**SHAPE)), {"q", "k", "v", "o", "gate", "up", "down"}),
    ],
    ids=["llama", "gpt2", "reward model"],
)
def test_embeddings_heads_norms_and_biases_have_adamw(model, has):
    make_muon(model, ADAM)
    chosen = {name for name, p in model.named_parameters() if has_momentum(p)}
    assert len(chosen) == len(has)
    for name in chosen:
        assert "_proj.weight" in name or ".c_" in name
        assert not name.endswith("bias")


def test_experts_are_refused():
    config = Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=32, head_dim=16, num_experts=4, num_experts_per_tok=2
    )
    with pytest.raises(
        InvalidJob, match="experts of this mixture are tensors of three dimensions; use adamw"
    ):
        make_muon(AutoModelForCausalLM.from_config(config), ADAM)


def test_a_model_of_which_only_matrices_are_trained_is_refused():
    model = llama()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("_proj." in name)
    with pytest.raises(InvalidJob, match="no trained parameter is left for it; freeze fewer parts"):
        make_muon(model, ADAM)
