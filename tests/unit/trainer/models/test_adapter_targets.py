"""Adapters of mixtures of experts train what a manifest names: by type, as the plan counts it, and as PEFT loads it."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_api.estimate.parameters import shape_of
from rlhf_api.estimate.shapes import adapter_parameters
from rlhf_api.sections.lora import Lora
from rlhf_trainer.export.model_files import write_adapter
from rlhf_trainer.models.adapter import Adapter

WIDTHS = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}


def gated(place: str) -> set[str]:
    return {f"{place}.{part}_proj" for part in ("gate", "up", "down")}


def attention(*parts: str) -> set[str]:
    return {f"{layer}.self_attn.{part}" for layer in (0, 1) for part in parts}


USUAL = attention("q_proj", "k_proj", "v_proj", "o_proj")
SHARED = {f"{layer}.mlp.shared_expert_gate" for layer in (0, 1)}
FAMILIES = {
    "qwen3_moe": ({"num_experts": 4, "head_dim": 24}, USUAL),
    "qwen3_moe dense": ({"num_experts": 4, "head_dim": 24, "mlp_only_layers": [0]}, USUAL | gated("0.mlp")),
    "qwen2_moe": (
        {"num_experts": 4, "shared_expert_intermediate_size": 40},
        USUAL | SHARED | gated("0.mlp.shared_expert") | gated("1.mlp.shared_expert"),
    ),
    "mixtral": ({"num_local_experts": 4}, USUAL),
    "olmoe": ({"num_experts": 4}, USUAL),
    "glm4_moe": ({"n_routed_experts": 4}, USUAL | gated("0.mlp") | gated("1.mlp.shared_experts")),
    "gpt_oss": ({"num_local_experts": 4, "head_dim": 16}, USUAL),
    "deepseek_v3": (
        {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, **LATENT},
        attention("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
        | gated("0.mlp")
        | gated("1.mlp.shared_experts"),
    ),
}
"""Fields of each type's configuration, and its linear layers outside the head and the experts."""
ALL_EXPERTS = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "gpt_oss")
"""Types whose layers here all have experts."""
UNCOUNTED = ("gpt_oss", "deepseek_v3")
"""Types whose widths the plan does not know."""
BOTH = ("experts.gate_up_proj", "experts.down_proj")
NAMED = [
    *((family, BOTH, {f"{layer}.mlp.{part}" for layer in (0, 1) for part in BOTH}) for family in ALL_EXPERTS),
    ("qwen3_moe dense", ("down_proj", BOTH[1]), {"0.mlp.down_proj", f"1.mlp.{BOTH[1]}"}),
    ("qwen3_moe dense", ("layers.1.mlp.experts.down_proj",), {f"1.mlp.{BOTH[1]}"}),
    ("qwen2_moe", ("shared_expert.up_proj",), {f"{layer}.mlp.shared_expert.up_proj" for layer in (0, 1)}),
    ("glm4_moe", BOTH, {f"1.mlp.{part}" for part in BOTH}),
    ("glm4_moe", ("gate_proj",), {"0.mlp.gate_proj", "1.mlp.shared_experts.gate_proj"}),
    ("glm4_moe", ("up_proj", BOTH[0]), {"0.mlp.up_proj", "1.mlp.shared_experts.up_proj", f"1.mlp.{BOTH[0]}"}),
    (
        "glm4_moe",
        ("gate_proj", "up_proj", "down_proj", BOTH[0]),
        gated("0.mlp") | gated("1.mlp.shared_experts") | {f"1.mlp.{BOTH[0]}"},
    ),
    ("deepseek_v3", ("layers.0.mlp.up_proj",), {"0.mlp.up_proj"}),
]


def made(family: str):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family.split()[0], **WIDTHS | FAMILIES[family][0])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@pytest.mark.parametrize(
    ("family", "targets", "layers"),
    [*((family, None, layers) for family, (_, layers) in FAMILIES.items()), *NAMED],
)
def test_an_adapter_trains_what_the_manifest_names_and_the_plan_counts_it(family, targets, layers):
    model, settings = made(family), Lora(rank=3, targetModules=targets)
    adapter = Adapter(model, settings, 0, "")
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    weights = {adapter.travelling(name).rpartition(".lora_")[0] for name in trained}
    assert weights == {
        f"model.layers.{layer}" if ".experts." in layer else f"model.layers.{layer}.weight"
        for layer in layers
    }
    shape = shape_of(model.config.to_dict())
    assert (shape is None) == (family in UNCOUNTED)
    if shape is not None:
        assert adapter_parameters(settings, shape) == sum(trained.values())


@pytest.mark.parametrize("targets", [None, ("q_proj", "up_proj", "experts.gate_up_proj")])
@pytest.mark.parametrize("family", ["glm4_moe", "qwen3_moe dense"])
def test_peft_loads_an_adapter_of_layers_whose_names_it_misreads(family, targets, tmp_path):
    base, model = made(family), made(family)
    adapter = Adapter(model, Lora(rank=2, alpha=3, targetModules=targets, rankStabilized=True), 0, "base")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tokens = torch.tensor([[1, 5, 9, 2]])
    with torch.no_grad():
        for parameter in trained.values():
            torch.nn.init.normal_(parameter, std=0.3)
        adapter.save_config(tmp_path)
        write_adapter(tmp_path, trained)
        bare, whole = base(tokens).logits, model(tokens).logits
        loaded = PeftModel.from_pretrained(base, tmp_path)
        assert sum(".lora_" in name for name, _ in loaded.named_parameters()) == len(trained)
        torch.testing.assert_close(loaded(tokens).logits, whole, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(bare, whole, atol=1e-2)


def test_magnitudes_that_peft_will_not_load_are_trained_with_a_warning(caplog, tmp_path):
    base, model = made("glm4_moe"), made("glm4_moe")
    adapter = Adapter(model, Lora(rank=2, targetModules=("q_proj", "up_proj"), weightDecomposed=True), 0, "")
    assert sum(".lora_magnitude_" in name for name, _ in model.named_parameters()) == 4
    assert "PEFT takes up_proj of Glm4MoeForCausalLM for its experts" in caplog.text
    adapter.save_config(tmp_path)
    with pytest.raises(ValueError, match="does not work with use_dora=True"):
        PeftModel.from_pretrained(base, tmp_path)
