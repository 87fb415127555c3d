"""New weights into a model that vLLM serves, in the memory of the old ones: CUDA graphs read from there."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from vllm.config import ModelConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

AS_LOADED = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""On a GPU these compute with the parameters just as they were loaded."""


def load(
    model: nn.Module, config: ModelConfig, weights: Sequence[tuple[str, Tensor]], device: torch.device
) -> set[str] | None:
    """The names of the parameters that got new weights, as `model.load_weights` gives them. Waits for the device."""
    if device.type == "cuda" and computes_as_loaded(model):
        # What the other way does too in the end, without its detour: half of the time that generation is paused.
        loaded = model.load_weights(iter(weights))
    else:
        initialize_layerwise_reload(model)
        loaded = model.load_weights(iter(weights))
        finalize_layerwise_reload(model, config)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    else:
        # A tied lm_head gets no tensor of its own, so its packed copy of the embedding stays the old one.
        for module in model.modules():
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)
    return loaded


def computes_as_loaded(model: nn.Module) -> bool:
    """Whether nothing is derived from this model's parameters after they are loaded, such as a quantized, repacked or
    absorbed form of them, that loading into them again would leave as it was."""
    return all(_as_loaded(module) for module in model.modules())


def _as_loaded(module: nn.Module) -> bool:
    method = getattr(module, "quant_method", None)
    if method is not None and type(method) not in AS_LOADED:
        return False
    return type(module) is Attention or not hasattr(module, "process_weights_after_loading")
