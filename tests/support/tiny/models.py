"""Tiny causal language models with a tokenizer, saved the way a model hub would hold them."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte (ids 0..255), then `<eos>` (256) and `<pad>` (257)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


def small_llama(kind: type[PreTrainedModel] = LlamaForCausalLM, layers: int = 2, **settings: Any) -> Any:
    """Makes a Llama over the tokens of `byte_tokenizer`, with random weights of torch's generator."""
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        **settings,
    )
    return kind(config)


def tiny_model(
    directory: Path, *, tie: bool, seed: int, head_dim: int = 32, chat: bool = False, **more: Any
) -> Path:
    """Saves a 2-layer float32 model and its tokenizer: Qwen2 with tied embeddings, Llama with an lm_head; `chat`: with
    the tokens and the template of ChatML; `more`: of its configuration."""
    config_cls, model_cls = (Qwen2Config, Qwen2ForCausalLM) if tie else (LlamaConfig, LlamaForCausalLM)
    tokenizer, more = chat_tokenizer() if chat else None, {"hidden_size": 2 * head_dim, **more}
    return _saved(directory, config_cls, model_cls, seed, tokenizer, tie_word_embeddings=tie, **more)


def tiny_experts(directory: Path, *, seed: int) -> Path:
    """Saves a 2-layer float32 mixture of four experts, two for each token, and its tokenizer: Qwen3-MoE."""
    mixture = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "moe_intermediate_size": 32,
    }
    own = {"head_dim": 32, "tie_word_embeddings": False}
    return _saved(directory, Qwen3MoeConfig, Qwen3MoeForCausalLM, seed, **mixture, **own)


def tiny_biased_experts(directory: Path, *, seed: int) -> Path:
    """As `tiny_experts`, but GLM-4-MoE, whose router chooses by a persistent buffer that no gradient trains, a bias. It
    decides the choice here, and differs from seed to seed."""
    mixture = {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
    }
    own = {"head_dim": 32, "tie_word_embeddings": False}
    return _saved(directory, Glm4MoeConfig, Glm4MoeForCausalLM, seed, **mixture, **own)


def _saved(
    directory: Path, config_cls, model_cls, seed: int, tokenizer=None, hidden_size: int = 64, **more
) -> Path:
    torch.manual_seed(seed)
    tokenizer = tokenizer or byte_tokenizer()
    more = {"vocab_size": len(tokenizer), "max_position_embeddings": 256, **more}
    config = config_cls(
        hidden_size=hidden_size,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # of 32: vLLM on CPU has no kernel for smaller ones
        num_key_value_heads=1,
        initializer_range=0.1,  # large enough that two seeds disagree by far more than rounding
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **more,
    )
    model = model_cls(config).to(torch.float32)
    for name, buffer in model.named_buffers():
        if name in model.state_dict():
            buffer.normal_()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """`byte_tokenizer` with ChatML as its template, whose end of a turn is not the end of a text."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = CHATML
    return tokenizer
