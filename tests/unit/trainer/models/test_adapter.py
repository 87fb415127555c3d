"""Adapters of models of which only a part consists of linear layers."""

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, Qwen3MoeConfig

from rlhf_api.sections.lora import Lora
from rlhf_trainer.models.adapter import Adapter

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
MIXTURES = [
    Qwen3MoeConfig(**SHAPE, moe_intermediate_size=32, head_dim=16, num_experts=4, num_experts_per_tok=2),
    MixtralConfig(**SHAPE, num_local_experts=4),
]


@pytest.mark.parametrize("config", MIXTURES, ids=lambda config: config.model_type)
def test_experts_without_an_adapter_are_named_in_a_warning(config, caplog):
    model = AutoModelForCausalLM.from_config(config)
    parameters = dict(model.named_parameters())
    experts = sum(p.numel() for name, p in parameters.items() if "experts" in name)
    share = experts / sum(p.numel() for p in parameters.values())
    Adapter(model, Lora(rank=4), 0, "base")
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert f"the experts of {type(model).__name__}, {100 * share:.0f}% of its parameters, have no" in warning
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert not any("experts" in name for name in trained)


def test_experts_cannot_be_named_as_layers():
    with pytest.raises(
        ValueError, match=r"is named 'gate_up_proj'; .*; experts of a mixture have no adapter"
    ):
        Adapter(AutoModelForCausalLM.from_config(MIXTURES[0]), Lora(targetModules=("gate_up_proj",)), 0, "")


def test_a_model_without_experts_is_warned_of_nothing(caplog):
    Adapter(AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)), Lora(rank=4), 0, "base")
    assert not caplog.records
