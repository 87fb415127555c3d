"""Parameter count and widths of a model, computed from its Hugging Face configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..sections.lora import Lora

Config = Mapping[str, Any]

_LLAMA: Config = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN2 = {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}
_GEMMA = {**_LLAMA, "head_dim": 256, "tie_word_embeddings": True}
_GEMMA2 = {
    **_GEMMA,
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
_DEFAULTS: Mapping[str, Config] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8},
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128},
    "qwen3_vl_text": {**_QWEN2, "head_dim": 128},
    "gemma": {
        **_GEMMA,
        "vocab_size": 256000,
        "hidden_size": 3072,
        "intermediate_size": 24576,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
    },
    "gemma2": _GEMMA2,
    "gemma3_text": {**_GEMMA2, "vocab_size": 262208},
    "gpt2": {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_inner": None,
        "tie_word_embeddings": True,
    },
}
"""Defaults of Transformers' configurations; a test compares them with the installed version."""

_ALL_BIASES = ("llama", "qwen3", "qwen3_vl_text", "gemma", "gemma2", "gemma3_text")
"""Types that respect `attention_bias`; qwen2 always has biases, except the output's, and mistral never."""
_HEAD_NORMS = ("qwen3", "qwen3_vl_text", "gemma3_text")
_FOUR_NORMS = ("gemma2", "gemma3_text")
_LARGEST = 10**15


@dataclass(frozen=True)
class Shape:
    """Widths of a decoder with gated layers: hidden states, all heads' queries and keys, intermediate layer."""

    layers: int
    hidden: int
    queries: int
    keys: int
    inner: int
    vocabulary: int
    norms: int = 2
    """Norms per layer, except those of single heads."""
    head_norms: bool = False
    tied: bool = False
    """True if the output layer has the embeddings' weights."""


def shape_of(config: Config) -> Shape | None:
    """Widths from a configuration; None for an unsupported type or an inconsistent configuration."""
    kind = config.get("model_type")
    if kind == "gpt2" or count_parameters(config) is None:
        return None
    assert isinstance(kind, str)
    full = {key: config.get(key, default) for key, default in _DEFAULTS[kind].items()}
    head = full["head_dim"] or full["hidden_size"] // full["num_attention_heads"]
    return Shape(
        layers=full["num_hidden_layers"],
        hidden=full["hidden_size"],
        queries=full["num_attention_heads"] * head,
        keys=(full["num_key_value_heads"] or full["num_attention_heads"]) * head,
        inner=full["intermediate_size"],
        vocabulary=full["vocab_size"],
        norms=4 if kind in _FOUR_NORMS else 2,
        head_norms=kind in _HEAD_NORMS,
        tied=bool(full["tie_word_embeddings"]),
    )


def count_parameters(config: Config) -> int | None:
    """Parameter count of a dense decoder with the head that `architectures` names; tied weights count once.

    None for an unsupported type or an inconsistent configuration.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        return None
    full = {key: config.get(key, default) for key, default in _DEFAULTS[kind].items()}
    if not all(value is None or isinstance(value, int) for value in full.values()):
        return None
    try:
        body, width = _gpt2(full) if kind == "gpt2" else _decoder(kind, full)
        if any(str(name).endswith("Classification") for name in config.get("architectures") or ()):
            head = width  # a single score
        else:
            head = 0 if full["tie_word_embeddings"] else full["vocab_size"] * width
    except (TypeError, ZeroDivisionError):
        return None
    return body + head if 0 < body < _LARGEST else None


def idle_share(config: Config) -> float:
    """Share of a mixture's experts that a token does not pass; 0 for a dense model or an unsupported configuration."""
    counts = [config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")]
    every = next((count for count in counts if isinstance(count, int) and count > 0), 0)
    chosen = config.get("num_experts_per_tok")
    return 1 - chosen / every if isinstance(chosen, int) and 0 < chosen <= every else 0.0


def choices(config: Config) -> int:
    """Experts chosen for a token in all layers of a mixture, at most; 0 for a dense model."""
    layers = config.get("num_hidden_layers")
    return layers * config["num_experts_per_tok"] if idle_share(config) and isinstance(layers, int) else 0


def _decoder(kind: str, config: Config) -> tuple[int, int]:
    """Number of parameters without the head, and the width of the hidden states."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head = config["head_dim"] or width // heads
    queries = heads * head
    keys = (config["num_key_value_heads"] or heads) * head
    inner = config["intermediate_size"]
    layer = 2 * width * queries + 2 * width * keys + 3 * width * inner
    layer += (4 if kind in _FOUR_NORMS else 2) * width
    if kind == "qwen2":
        layer += queries + 2 * keys
    if kind in _ALL_BIASES and config["attention_bias"]:
        layer += queries + 2 * keys + width
    if kind == "llama" and config["mlp_bias"]:
        layer += 2 * inner + width
    if kind in _HEAD_NORMS:
        layer += 2 * head
    return config["vocab_size"] * width + config["num_hidden_layers"] * layer + width, width


def _gpt2(config: Config) -> tuple[int, int]:
    width = config["n_embd"]
    inner = config["n_inner"] or 4 * width
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    embeddings = (config["vocab_size"] + config["n_positions"]) * width
    return embeddings + config["n_layer"] * layer + 2 * width, width


def adapter_parameters(settings: Lora, shape: Shape) -> int:
    """Parameters of a decoder's adapter: rank x (inputs + outputs) of each linear layer that has one, and its outputs
    once more for their magnitudes."""
    widths = [width for layer in _adapted(settings, shape) for width in layer]
    magnitudes = sum(outputs for _, outputs in widths) if settings.weight_decomposed else 0
    return settings.rank * sum(map(sum, widths)) + magnitudes


def magnitude_elements(settings: Lora | None, shape: Shape) -> tuple[int, int]:
    """Elements that magnitudes add to a decoder's activations: per token of the layer that has most of them, and of the
    largest norm. PEFT keeps what W and B A each make of a token. For the norm it makes B A of the identity [in, in],
    and holds B A, its multiple and the sum with W at once, [out, in] each."""
    if settings is None or not settings.weight_decomposed:
        return 0, 0
    layers = _adapted(settings, shape)
    norms = [inputs * (inputs + 3 * outputs) for layer in layers for inputs, outputs in layer]
    return 2 * max(sum(outputs for _, outputs in layer) for layer in layers), max(norms, default=0)


def frozen_parameters(is_frozen: Callable[[str], bool], shape: Shape) -> int:
    """Parameters of a decoder's matrices whose names are frozen; vectors are not counted."""
    ends = [is_frozen(f"{name}.weight") for name in ("model.embed_tokens", "lm_head")]
    whole = any(ends) if shape.tied else sum(ends)
    layers = shape.layers * sum(inputs * outputs for inputs, outputs in _linear(shape).values())
    frozen = layers - hidden_parameters(is_frozen, shape)
    return whole * shape.vocabulary * shape.hidden + frozen


def hidden_parameters(is_frozen: Callable[[str], bool], shape: Shape) -> int:
    """Parameters of the matrices of a decoder's layers that are not frozen."""
    return sum(
        inputs * outputs
        for layer in range(shape.layers)
        for part, (inputs, outputs) in _linear(shape).items()
        if not is_frozen(f"model.layers.{layer}.{part}.weight")
    )


def _adapted(settings: Lora, shape: Shape) -> list[list[tuple[int, int]]]:
    """Inputs and outputs of the linear layers that have an adapter, by a decoder's layers."""
    linear = _linear(shape)
    ends = tuple(f".{target}" for target in settings.target_modules or linear)
    layers = [f".model.layers.{layer}" for layer in range(shape.layers)]
    return [[linear[part] for part in linear if f"{at}.{part}".endswith(ends)] for at in layers]


def _linear(shape: Shape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the linear layers of a decoder's layer."""
    return {
        "self_attn.q_proj": (shape.hidden, shape.queries),
        "self_attn.k_proj": (shape.hidden, shape.keys),
        "self_attn.v_proj": (shape.hidden, shape.keys),
        "self_attn.o_proj": (shape.queries, shape.hidden),
        "mlp.gate_proj": (shape.hidden, shape.inner),
        "mlp.up_proj": (shape.hidden, shape.inner),
        "mlp.down_proj": (shape.inner, shape.hidden),
    }
