"""Defaults of Transformers' configurations."""

from collections.abc import Mapping
from typing import Any

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
_QWEN2_MOE = {
    **_QWEN2,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
DEFAULTS: Mapping[str, Config] = {
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
    "mixtral": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "num_experts_per_tok": 2,
        "num_experts": 8,
    },
    "qwen2_moe": {**_QWEN2_MOE, "shared_expert_intermediate_size": 5632, "qkv_bias": True},
    "qwen3_moe": {
        **_QWEN2_MOE,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
    },
    "olmoe": {
        **_LLAMA,
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_experts_per_tok": 8,
        "num_experts": 64,
    },
    "glm4_moe": {
        **_LLAMA,
        "vocab_size": 151552,
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "use_qk_norm": False,
    },
}
"""By type, of the fields that its parameters and widths depend on; a test compares them with the installed version."""
