"""Parameter count and widths of a model, computed from its Hugging Face configuration."""

from ..host.model_directory import MOST_LAYERS
from .config_defaults import DEFAULTS, Config
from .mixtures import COUNTS, mixture_of
from .shapes import Shape, matrix_parameters

_ALL_BIASES = ("llama", "qwen3", "qwen3_vl_text", "gemma", "gemma2", "gemma3_text", "qwen3_moe", "olmoe")
"""Types whose `attention_bias` is of the output too; glm4_moe's is not, qwen2 always has the others, mistral never."""
_HEAD_NORMS = ("qwen3", "qwen3_vl_text", "gemma3_text", "qwen3_moe", "olmoe")
_FOUR_NORMS = ("gemma2", "gemma3_text")
_LARGEST = 10**15


def shape_of(config: Config) -> Shape | None:
    """Widths from a configuration; None for an unsupported type or an inconsistent configuration."""
    kind = config.get("model_type")
    if kind == "gpt2" or count_parameters(config) is None:
        return None
    assert isinstance(kind, str)
    return _shape(kind, _filled(kind, config))


def count_parameters(config: Config) -> int | None:
    """Parameter count of a decoder with the head that `architectures` names; tied weights count once.

    None for an unsupported type or an inconsistent configuration.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in DEFAULTS:
        return None
    full = _filled(kind, config)
    if not all(v is None or isinstance(v, int) for name, v in full.items() if name != "mlp_only_layers"):
        return None
    try:
        if not 0 <= full.get("num_hidden_layers", 0) <= MOST_LAYERS:
            return None
        body, width = _gpt2(full) if kind == "gpt2" else _decoder(kind, full)
        if any(str(name).endswith("Classification") for name in config.get("architectures") or ()):
            head = width  # a single score
        else:
            head = 0 if full["tie_word_embeddings"] else full["vocab_size"] * width
    except (TypeError, ZeroDivisionError):
        return None
    return body + head if 0 < body < _LARGEST else None


def _filled(kind: str, config: Config) -> Config:
    """The fields of the type that parameters depend on, with defaults; `num_experts` under this name alone."""
    full = {key: config.get(key, default) for key, default in DEFAULTS[kind].items()}
    if "num_experts" in full:
        full["num_experts"] = next((config[name] for name in COUNTS if name in config), full["num_experts"])
    return full


def _shape(kind: str, full: Config) -> Shape:
    head = full["head_dim"] or full["hidden_size"] // full["num_attention_heads"]
    return Shape(
        layers=full["num_hidden_layers"],
        hidden=full["hidden_size"],
        queries=full["num_attention_heads"] * head,
        keys=(full["num_key_value_heads"] or full["num_attention_heads"]) * head,
        inner=full["intermediate_size"],
        vocabulary=full["vocab_size"],
        norms=4 if kind in _FOUR_NORMS else 2,
        head_norms=kind in _HEAD_NORMS or bool(full.get("use_qk_norm")),
        tied=bool(full["tie_word_embeddings"]),
        mixture=mixture_of(kind, full),
    )


def _decoder(kind: str, full: Config) -> tuple[int, int]:
    """Number of parameters without the head, and the width of the hidden states."""
    shape = _shape(kind, full)
    vectors = shape.norms * shape.hidden
    biased = bool(full["attention_bias"])
    if kind == "qwen2" or full.get("qkv_bias") or (biased and kind in (*_ALL_BIASES, "glm4_moe")):
        vectors += shape.queries + 2 * shape.keys
    if biased and kind in _ALL_BIASES:
        vectors += shape.hidden
    if kind == "llama" and full["mlp_bias"]:
        vectors += 2 * shape.inner + shape.hidden
    if kind == "olmoe":  # over all heads at once
        vectors += shape.queries + shape.keys
    elif shape.head_norms:
        vectors += 2 * (shape.queries // full["num_attention_heads"])
    ends = (shape.vocabulary + 1) * shape.hidden  # embeddings, and the last norm
    return ends + shape.layers * vectors + matrix_parameters(shape), shape.hidden


def _gpt2(config: Config) -> tuple[int, int]:
    width = config["n_embd"]
    inner = config["n_inner"] or 4 * width
    layer = 4 * width * width + 4 * width + 2 * width * inner + inner + width + 4 * width
    embeddings = (config["vocab_size"] + config["n_positions"]) * width
    return embeddings + config["n_layer"] * layer + 2 * width, width
