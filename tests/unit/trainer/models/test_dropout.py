"""An update's forward pass is that of the log-probabilities it is compared with, whatever dropout a model has."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    OPTConfig,
)

from rlhf_trainer.maths.outputs import ResponseLogprobs, response_values
from rlhf_trainer.tensors.records import Sequences

SEQUENCES = Sequences.pack([((5, 6, 7), (8, 9, 10, 11)), ((12,), (13, 14)), ((15, 16), (17, 18, 19))])
CONFIGS = {
    "gpt2": GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=4, embd_pdrop=0.5, attn_pdrop=0.5, resid_pdrop=0.5
    ),
    # By functions, not modules, and whole layers that are left out.
    "opt": OPTConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        ffn_dim=48,
        num_attention_heads=4,
        word_embed_proj_dim=32,
        dropout=0.5,
        attention_dropout=0.5,
        layerdrop=0.5,
    ),
    "llama": LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, attention_dropout=0.5
    ),
    "bloom": BloomConfig(
        vocab_size=50, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.5, attention_dropout=0.5
    ),
}


def first_ratios(engine, read) -> torch.Tensor:
    """exp(new - old) of every output, in the first update on what `infer` gave."""
    old = engine.infer(SEQUENCES, read, SEQUENCES.response_lengths)
    ratios = []

    def loss(new, micro):
        ratios.append((new.detach() - old[micro.response_index]).exp())
        return new.sum(), {}

    engine.update(SEQUENCES, read, loss, 0.01)
    return torch.cat(ratios)


BOTH = [(name, attention) for name in CONFIGS for attention in ("sdpa", "eager")]


@pytest.mark.parametrize(("name", "attention"), [pair for pair in BOTH if pair != ("bloom", "sdpa")])
def test_the_first_ratio_is_exactly_one(trained, name, attention):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation=attention)
    ratios = first_ratios(trained(model), ResponseLogprobs())
    assert len(ratios) == 9
    assert ratios.tolist() == [1.0] * 9


@pytest.mark.parametrize("stage", [1, 3])
def test_it_is_under_zero_too(trained, stage):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["gpt2"])
    engine = trained(model, zero_optimization={"stage": stage})
    assert first_ratios(engine, ResponseLogprobs()).tolist() == [1.0] * 9
    assert first_ratios(engine, ResponseLogprobs()).tolist() == [1.0] * 9, "after an update too"


def test_the_values_of_a_critic_are_those_it_was_asked_for(trained):
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_config(CONFIGS["gpt2"])
    ratios = first_ratios(trained(model), response_values)
    assert ratios.tolist() == [1.0] * 9
