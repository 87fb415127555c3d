"""Numbers of parameters: by configuration, and by the files of a model."""

from functools import partial
from pathlib import Path

import pytest
import torch
from tests.support.tiny.models import tiny_biased_experts, tiny_experts, tiny_model
from tests.support.tiny.vision import tiny_vision
from tests.unit.api.manifests import unchecked
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
)

from rlhf_api.estimate.memory import count
from rlhf_api.estimate.mixtures import idle_share
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.parameters import count_parameters, shape_of
from rlhf_api.estimate.sizes import Size, Sizes, frozen_part
from rlhf_api.estimate.trainer_memory import trained, training
from rlhf_trainer.models.frozen import freeze_parts
from rlhf_trainer.models.pretrained.vision import freeze

TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt2")
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
SHAPES = {
    "default": {},
    "small": {**SMALL, "num_key_value_heads": 2, "vocab_size": 300},
    "heads": {**SMALL, "num_key_value_heads": 4, "head_dim": 24},
    "biases": {**SMALL, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "tied": {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True},
    "untied": {**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": False},
}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4}
GPT2_SHAPES = {
    "small": {"n_positions": 77},
    "inner": {"n_inner": 50},
    "untied": {"tie_word_embeddings": False},
}
SPARSE = {**SMALL, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "vocab_size": 300}
MIXTURE_SHAPES = {
    "qwen3_moe": {"num_experts": 4, "mlp_only_layers": [1], "head_dim": 24, "attention_bias": True},
    "qwen2_moe": {"num_experts": 4, "decoder_sparse_step": 2, "qkv_bias": False},
    "mixtral": {"num_local_experts": 4, "tie_word_embeddings": True},
    "olmoe": {"num_experts": 4, "num_key_value_heads": 2, "attention_bias": True},
    "glm4_moe": {"n_routed_experts": 4, "use_qk_norm": True, "attention_bias": True, "n_shared_experts": 2},
}


def shapes_of(kind: str) -> dict[str, dict[str, object]]:
    if kind == "gpt2":
        return {name: GPT2 | shape for name, shape in GPT2_SHAPES.items()} | {"default": {}}
    if kind in MIXTURE_SHAPES:
        return {"default": {}, "small": {**SPARSE, "num_key_value_heads": 4} | MIXTURE_SHAPES[kind]}
    return SHAPES


@pytest.mark.parametrize("kind", [*TYPES, *MIXTURE_SHAPES])
def test_parameters_are_those_of_transformers(kind: str) -> None:
    for name, shape in shapes_of(kind).items():
        config = AutoConfig.for_model(kind, **shape)
        config.num_labels = 1
        heads = (AutoModelForCausalLM, AutoModelForSequenceClassification)
        for made in (made for made in heads if type(config) in made._model_mapping):
            with torch.device("meta"):
                model = made.from_config(config)
            # Of `create` only what the user says is known, of a directory everything.
            for known in (shape, config.to_dict()):
                written = {**known, "model_type": kind, "architectures": [type(model).__name__]}
                assert count_parameters(written) == sum(p.numel() for p in model.parameters()), name


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "gpt_oss"},
        {"model_type": ["llama"]},
        {"model_type": "llama", "hidden_size": "wide"},
        {"model_type": "llama", "hidden_size": 1.5},
        {"model_type": "llama", "hidden_size": None},
        {"model_type": "llama", "num_attention_heads": 0},
        {"model_type": "llama", "num_hidden_layers": -40},
        {"model_type": "llama", "num_hidden_layers": 10**400},
        {"model_type": "gpt2", "n_embd": None},
        {"model_type": "llama", "architectures": 3},
    ],
    ids=str,
)
def test_other_models_are_not_counted(config) -> None:
    assert count_parameters(config) is None


def test_sizes_of_model_directories(tmp_path: Path) -> None:
    whole = tiny_model(tmp_path / "whole", tie=True, seed=0)
    model = AutoModelForCausalLM.from_pretrained(whole)
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    (tmp_path / "shards" / "consolidated.safetensors").write_bytes((whole / "model.safetensors").read_bytes())
    model.config.save_pretrained(tmp_path / "configured")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "broken" / "config.json").write_text("[1]")
    names = {"policy": "whole", "critic": "shards", "reward": "configured", "reference": "broken"}
    overrides = [f"spec.model.{field}={tmp_path / name}" for field, name in names.items()]
    parameters = sum(p.numel() for p in model.parameters())
    size = Size(parameters, shape_of(model.config.to_dict()))
    assert size.shape is not None
    assert model_sizes(unchecked(*overrides)) == dict.fromkeys(("policy", "critic", "reward"), size)
    assert model_sizes(unchecked()) == {}


@pytest.mark.parametrize("make", [tiny_experts, tiny_biased_experts])
def test_a_token_passes_the_experts_that_are_chosen_for_it_and_all_else(make, tmp_path: Path) -> None:
    folder = make(tmp_path, seed=0)
    parameters = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    experts = sum(p.numel() for name, p in parameters.items() if ".mlp.experts." in name)
    (size,) = model_sizes(unchecked(f"spec.model.policy={folder}")).values()
    assert size.parameters >= sum(p.numel() for p in parameters.values())  # with buffers
    assert experts > 0
    assert size.passed == size.parameters - experts / 2, "two of four"
    assert size.choices == 2 * 2, "in two layers"


@pytest.mark.parametrize(
    ("config", "share"),
    [
        ({"num_experts": 128, "num_experts_per_tok": 8}, 0.9375),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, 0.75),
        ({"n_routed_experts": 4, "num_experts_per_tok": 4}, 0.0),
        ({"num_experts": 4}, 0.0),
        ({"num_experts": "4", "num_experts_per_tok": 2}, 0.0),
        ({"num_experts": 2, "num_experts_per_tok": 4}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_share_of_idle_experts(config, share) -> None:
    assert idle_share(config) == share


def test_the_size_of_a_downloaded_model_of_the_hub_is_that_of_its_main_version(tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--org--policy"
    for version in ("0" * 40, "1" * 40):
        folder = tiny_model(model / "snapshots" / version, tie=version[0] == "1", seed=0)
    (model / "refs").mkdir()
    spec = unchecked("spec.model.policy=org/policy", f"spec.env={{HF_HOME: {tmp_path}}}")
    assert model_sizes(spec, {"HF_HOME": "elsewhere"}) == {}, "no version is the main one"
    (model / "refs" / "main").write_text(f"{folder.name}\n")
    assert model_sizes(spec, {"HF_HOME": "elsewhere"}) == {
        "policy": model_sizes(unchecked(f"spec.model.policy={folder}"))["policy"]
    }
    (folder / "model.safetensors").unlink()
    assert model_sizes(spec, {"HF_HOME": "elsewhere"})["policy"].shape, (
        "as long as it is on its way, by its configuration"
    )
    (model / "refs" / "main").write_text("../../elsewhere")
    assert model_sizes(spec, {"HF_HOME": "elsewhere"}) == {}


def test_a_model_that_reads_images_has_all_its_parameters_and_the_widths_of_its_language_model(
    tmp_path: Path,
) -> None:
    folder = tiny_vision(tmp_path / "policy")
    size = model_sizes(unchecked(f"spec.model.policy={folder}"))["policy"]
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.shape is not None
    assert (size.shape.layers, size.shape.hidden, size.shape.queries, size.shape.keys) == (2, 64, 64, 32)
    assert size.shape.vocabulary == model.config.text_config.vocab_size


FROZEN = {
    "parts": (partial(tiny_model, seed=0, tie=False), ["embed_tokens", "layers.0"]),
    "a tied head": (partial(tiny_model, seed=0, tie=True), ["lm_head"]),
    "experts": (partial(tiny_experts, seed=0), ["experts.gate_up_proj", "lm_head"]),
    "what reads images": (tiny_vision, []),
    "that and more": (tiny_vision, ["layers.1"]),
}


@pytest.mark.parametrize("name", FROZEN)
def test_what_a_job_freezes_is_counted_by_the_names_in_its_policys_files(name: str, tmp_path: Path) -> None:
    make, parts = FROZEN[name]
    folder = make(tmp_path / "policy")
    spec = unchecked(f"spec.model={{policy: {folder}, freeze: {parts}}}")
    kind = AutoModelForImageTextToText if make is tiny_vision else AutoModelForCausalLM
    model = kind.from_pretrained(folder)
    freeze(model)
    freeze_parts(model, parts)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    size = model_sizes(spec)["policy"]
    assert size.frozen == frozen_part(spec, size) == frozen > 0
    trained = spec.model_copy(update={"model": spec.model.model_copy(update={"train_vision": True})})
    assert make is not tiny_vision or (model_sizes(trained)["policy"].frozen or 0) < frozen


def test_a_frozen_part_that_reads_images_has_no_optimizer_state(tmp_path: Path) -> None:
    spec = unchecked(f"spec.model.policy={tiny_vision(tmp_path / 'policy')}")
    sizes = Sizes.of(spec, model_sizes(spec))
    assert sizes.policy is not None
    assert sizes.policy.frozen
    (policy, *_) = trained(spec, sizes)
    assert policy.learned == sizes.policy.parameters - sizes.policy.frozen
    assert f"{count(sizes.policy.frozen)} parameters, frozen, x 2 B" in training(spec, sizes).words
