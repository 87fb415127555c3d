"""Mixtures of experts by their Hugging Face configurations."""

from collections.abc import Mapping
from typing import Any

from .config_defaults import Config
from .shapes import Mixture

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts; a type reads two of them as the same field."""
_TRAITS: Mapping[str, Mapping[str, Any]] = {
    "qwen3_moe": {"fused": True},
    "qwen2_moe": {"shared_name": "shared_expert", "shared_gate": True},
    "mixtral": {"float32_weights": True, "fused": True},
    "olmoe": {},
    "glm4_moe": {"shared_name": "shared_experts", "float32_weights": True, "float32_router": True},
}
"""What each type's class does whatever its configuration: fields of `Mixture`."""


def mixture_of(kind: str, config: Config) -> Mixture | None:
    """The mixture of a type, whose configuration has all fields that it reads; None for a dense model."""
    if kind not in _TRAITS or not config["num_experts"]:
        return None
    step, first = config.get("decoder_sparse_step", 1), config.get("first_k_dense_replace", 0)
    dense = config.get("mlp_only_layers") or ()
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    return Mixture(
        layers=frozenset(
            layer
            for layer in range(config["num_hidden_layers"])
            if layer >= first and layer not in dense and (layer + 1) % step == 0
        ),
        experts=config["num_experts"],
        chosen=config["num_experts_per_tok"],
        inner=inner,
        shared=config.get("shared_expert_intermediate_size", config.get("n_shared_experts", 0) * inner),
        **_TRAITS[kind],
    )


def idle_share(config: Config) -> float:
    """Share of a mixture's experts that a token does not pass; 0 for a dense model or an unsupported configuration."""
    counts = [config.get(key) for key in COUNTS]
    every = next((count for count in counts if isinstance(count, int) and count > 0), 0)
    chosen = config.get("num_experts_per_tok")
    return 1 - chosen / every if isinstance(chosen, int) and 0 < chosen <= every else 0.0


def choices(config: Config) -> int:
    """Experts chosen for a token in all layers of a mixture, at most; 0 for a dense model."""
    layers = config.get("num_hidden_layers")
    return layers * config["num_experts_per_tok"] if idle_share(config) and isinstance(layers, int) else 0
