"""Adapters of models of which only a part consists of linear layers, and the scale of adapters."""

import math

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen3MoeConfig,
)

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
GPT_OSS = GptOssConfig(**SHAPE, head_dim=16, num_local_experts=4, num_experts_per_tok=2)
"""Whose experts are stored [experts, in, out]."""
LLAMA = LlamaConfig(**SHAPE, initializer_range=0.2)
GPT2 = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=16, initializer_range=0.2)


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


def test_a_layer_of_a_single_expert_is_refused_with_the_names_that_there_are():
    for name in ("up_proj", "down_proj"):
        says = f"is named '{name}'; .*; of its experts experts.down_proj, experts.gate_up_proj"
        with pytest.raises(ValueError, match=says):
            Adapter(AutoModelForCausalLM.from_config(MIXTURES[0]), Lora(targetModules=(name,)), 0, "")


@pytest.mark.parametrize("config", [*MIXTURES, GPT_OSS], ids=lambda config: config.model_type)
def test_experts_that_are_named_have_an_adapter_whose_merge_is_what_it_computes(config, caplog):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    targets = ("experts.gate_up_proj", "experts.down_proj", "v_proj")
    adapter = Adapter(model, Lora(rank=2, alpha=3, targetModules=targets), 0, "base")
    assert not caplog.records
    assert adapter.fingerprint["targetModules"] == sorted(targets)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (".lora_" in name)
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    tokens = torch.tensor([[1, 5, 9, 2]])
    with torch.no_grad():
        whole = model(tokens).logits
        with adapter.off():
            assert not torch.allclose(model(tokens).logits, whole, atol=1e-3)
        merged = AutoModelForCausalLM.from_config(config).eval()
        merged.load_state_dict(dict(adapter.merged(adapter.to_merge(iter(model.state_dict().items())))))
        torch.testing.assert_close(merged(tokens).logits, whole, rtol=1e-4, atol=1e-5)


def test_experts_have_no_magnitudes():
    settings = Lora(rank=2, targetModules=("experts.down_proj", "v_proj"), weightDecomposed=True)
    with pytest.raises(ValueError, match=r"linear layers alone, and experts.down_proj are weights of exp"):
        Adapter(AutoModelForCausalLM.from_config(MIXTURES[0]), settings, 0, "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=lambda config: config.model_type)
def test_a_decomposed_layer_is_what_it_is_merged_to_and_its_base_once_off(config, dtype):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    model.load_state_dict(base.state_dict())
    tokens = torch.tensor([[1, 5, 9, 2]])
    adapter = Adapter(model, Lora(rank=4, alpha=6, weightDecomposed=True), 0, "base")
    merged = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        bare = base(tokens).logits
        assert torch.equal(model(tokens).logits, bare), "the policy starts as its base"
        merged.load_state_dict(dict(adapter.merged(adapter.to_merge(iter(model.state_dict().items())))))
        assert all(torch.equal(merged.state_dict()[n], t) for n, t in base.state_dict().items()) or (
            dtype is torch.float32
        )
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad == (".lora_" in name)
            if ".lora_magnitude_vector." in name:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
            elif ".lora_B." in name:
                torch.nn.init.normal_(parameter, std=0.1)
        whole = model(tokens).logits
        with adapter.off():
            assert torch.equal(model(tokens).logits, bare)
        assert torch.equal(model(tokens).logits, whole)
        assert not torch.allclose(whole, bare, atol=1e-2)
        merged.load_state_dict(dict(adapter.merged(adapter.to_merge(iter(model.state_dict().items())))))
        difference = (merged(tokens).logits - whole).float().abs().mean()
        assert difference < (1e-6 if dtype is torch.float32 else 0.01)
    assert adapter.config.to_dict()["use_dora"] is True


def test_a_model_without_experts_is_warned_of_nothing(caplog):
    Adapter(AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)), Lora(rank=4), 0, "base")
    assert not caplog.records


@pytest.mark.parametrize(("stabilized", "scale"), [(False, 6 / 4), (True, 6 / math.sqrt(4))])
def test_a_merged_layer_has_the_scale_that_the_adapter_has_in_training(stabilized, scale):
    """Also once the adapter was off: the reference is the policy without it."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE))
    adapter = Adapter(model, Lora(rank=4, alpha=6, rankStabilized=stabilized), 0, "base")
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter)
    tokens = torch.tensor([[1, 5, 9, 2]])
    with torch.no_grad():
        whole = model(tokens).logits
        with adapter.off():
            assert not torch.allclose(model(tokens).logits, whole, atol=1e-3)
        merged = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE))
        merged.load_state_dict(dict(adapter.merged(adapter.to_merge(iter(model.state_dict().items())))))
        torch.testing.assert_close(merged(tokens).logits, whole, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(tokens).logits, whole, rtol=0, atol=0)
    layer = model.model.layers[0].mlp.up_proj
    own = layer.base_layer.weight + scale * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(merged.model.layers[0].mlp.up_proj.weight, own)
    assert adapter.config.to_dict()["use_rslora"] is stabilized
