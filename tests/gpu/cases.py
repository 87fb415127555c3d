"""Settings that the tests on a GPU vary, and the cases that together have each two values that can meet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product
from typing import Any

import transformers
from transformers import PreTrainedConfig

OFFLOAD = {"device": "cpu"}
ZERO: Mapping[str, Mapping[str, Any]] = {
    "0": {"stage": 0},
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "2 offload": {"stage": 2, "offload_optimizer": OFFLOAD},
    "3 offload": {"stage": 3, "offload_optimizer": OFFLOAD, "offload_param": OFFLOAD},
}
VALUES: Mapping[str, Sequence[str]] = {
    "dtype": ("float32", "bfloat16", "float16"),
    "attention": ("auto", "packed", "padded"),
    "zero": tuple(ZERO),
    "head": ("policy", "critic", "reward"),
    "tuned": ("whole", "lora"),
    "checkpointing": ("none", "selective", "full"),
    "kernels": ("auto", "torch"),
}


@dataclass(frozen=True)
class Update:
    """Settings of one trained model; values are those of `VALUES`."""

    dtype: str
    attention: str
    zero: str
    head: str
    tuned: str
    checkpointing: str
    kernels: str

    def __str__(self) -> str:
        return "-".join(asdict(self).values()).replace(" ", "-")


UPDATES = (
    Update("float32", "packed", "0", "policy", "whole", "selective", "auto"),
    Update("float32", "auto", "0", "policy", "lora", "none", "auto"),
    Update("float32", "auto", "1", "critic", "whole", "selective", "torch"),
    Update("float32", "auto", "2", "reward", "lora", "full", "torch"),
    Update("float32", "auto", "3 offload", "reward", "whole", "selective", "auto"),
    Update("float32", "padded", "0", "critic", "lora", "full", "auto"),
    Update("float32", "padded", "0", "reward", "whole", "selective", "torch"),
    Update("float32", "padded", "2", "critic", "whole", "full", "auto"),
    Update("float32", "padded", "3", "reward", "whole", "selective", "auto"),
    Update("float32", "padded", "2 offload", "critic", "whole", "none", "auto"),
    Update("bfloat16", "auto", "3", "policy", "whole", "none", "torch"),
    Update("bfloat16", "packed", "1", "policy", "lora", "full", "auto"),
    Update("bfloat16", "packed", "2 offload", "policy", "whole", "selective", "auto"),
    Update("bfloat16", "packed", "3 offload", "critic", "lora", "none", "auto"),
    Update("bfloat16", "padded", "2", "reward", "lora", "none", "torch"),
    Update("float16", "auto", "2 offload", "reward", "lora", "full", "torch"),
    Update("float16", "packed", "2", "policy", "lora", "selective", "torch"),
    Update("float16", "packed", "3", "critic", "lora", "full", "auto"),
    Update("float16", "padded", "1", "reward", "lora", "none", "auto"),
    Update("float16", "padded", "3 offload", "policy", "whole", "full", "torch"),
)


def can_be(case: Update) -> bool:
    """False for settings that a job is refused for: mixed precision has stage 1 at least, and no reward model packs."""
    mixed = case.dtype != "float32"
    return not ((mixed and case.zero == "0") or (case.attention == "packed" and case.head == "reward"))


def pairs_of(case: Update) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Each two settings of the case."""
    return combinations(asdict(case).items(), 2)


def pairs_that_can_be() -> set[tuple[tuple[str, str], tuple[str, str]]]:
    whole = (Update(*values) for values in product(*VALUES.values()))
    return {pair for case in whole if can_be(case) for pair in pairs_of(case)}


_SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "num_labels": 1,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_GPT2 = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 512, "vocab_size": 512}
_IDS = {name: _SHAPE[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id", "num_labels")}
FAMILIES: Mapping[str, PreTrainedConfig] = {
    "llama": transformers.LlamaConfig(**_SHAPE),
    "qwen2": transformers.Qwen2Config(**_SHAPE, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**_SHAPE),
    "mistral": transformers.MistralConfig(**_SHAPE, sliding_window=64),
    "gemma2": transformers.Gemma2Config(**_SHAPE, sliding_window=64, query_pre_attn_scalar=32),
    "gemma3": transformers.Gemma3TextConfig(**_SHAPE, sliding_window=64, query_pre_attn_scalar=32),
    "gpt2": transformers.GPT2Config(**_GPT2, **_IDS, initializer_range=0.1),
    "phi3": transformers.Phi3Config(**_SHAPE | {"num_key_value_heads": 4}),
    "qwen3-moe": transformers.Qwen3MoeConfig(**_SHAPE, **_EXPERTS),
    "olmo2": transformers.Olmo2Config(**_SHAPE),
}
"""Ten model families in a small shape."""
