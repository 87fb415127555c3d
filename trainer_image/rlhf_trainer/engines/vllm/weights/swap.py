"""In-place weight swap of a serving vLLM model: CUDA graphs keep reading the same memory."""

from collections.abc import Iterator, Set
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import ModelConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from .copy_plan import Copies
from .held import Weights

AS_LOADED = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
"""On a GPU, these layers compute with the parameters exactly as loaded."""


class Swap:
    """Loads weights into `model` on `device`, repeatedly."""

    def __init__(self, model: nn.Module, config: ModelConfig, device: torch.device) -> None:
        self.model = model
        self._model_code: Any = model
        self._config, self._device = config, device
        self._as_loaded = device.type == "cuda" and computes_as_loaded(model)
        self._attention: list[Any] = [module for module in model.modules() if type(module) is Attention]
        self._copies: Copies | None = None

    def load(self, weights: Weights) -> None:
        """Loads all weights and waits for the device, before for steps under way, which read the old ones. Raises
        RuntimeError where a parameter got no new weights."""
        self._wait()
        if self._as_loaded:
            self._load_as_before(weights)
            for layer in self._attention:  # FlashInfer computes with a float32 copy of attention sinks
                layer.impl.process_weights_after_loading(self._config.dtype)
        else:
            self._reload(weights)
        self._wait()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def arrived(self, weights: Weights) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Pairs of the model's memory and these weights, which were loaded last: see `Copies.pairs`. Empty if loading
        did more than copy them."""
        return iter(()) if self._copies is None else self._copies.pairs(weights.merged())

    def _reload(self, weights: Weights) -> None:
        if self._device.type == "cpu":
            # Experts are repacked only when their kernel is made: keeping it would leave them unpacked after an update.
            for module in self.model.modules():
                method = getattr(module, "quant_method", None)
                if isinstance(method, FusedMoEMethodBase):
                    method.moe_kernel = None
        initialize_layerwise_reload(self.model)
        loaded = self._model_code.load_weights(weights.merged())
        finalize_layerwise_reload(self.model, self._config)
        if self._device.type == "cpu":
            # A tied lm_head gets no tensor of its own, so its packed copy of the embedding would stay stale.
            for module in self.model.modules():
                if isinstance(module, VocabParallelEmbedding):
                    module.quant_method.process_weights_after_loading(module)
        self._check_all(loaded)

    def _load_as_before(self, weights: Weights) -> None:
        """Copies straight into the parameters, as the general path does in the end. Generation is paused meanwhile, so
        the model's own loading code, a Python call per weight, runs only once, to record its copies.
        """
        if self._copies is None or not self._copies.fit(self.model, weights.plain):
            loaded, self._copies = Copies.watch(
                self.model, weights.plain, lambda given: self._model_code.load_weights(iter(given))
            )
            self._check_all(loaded)
            if not weights.updates:
                return
        if self._copies is not None and self._copies.whole:
            self._copies.repeat(weights.merged())
        else:
            self._check_all(self._model_code.load_weights(weights.merged()))

    def _check_all(self, loaded: Set[str] | None) -> None:
        if loaded is None or self._config.quantization is not None:  # parameters have other names then
            return
        if missing := {name for name, _ in self.model.named_parameters()} - loaded:
            raise RuntimeError(f"no weights came for {sorted(missing)}")


def computes_as_loaded(model: nn.Module) -> bool:
    """True if nothing is derived from this model's parameters after loading (a quantized, repacked or absorbed form)
    that an in-place load would leave stale."""
    return all(_as_loaded(module) for module in model.modules())


def _as_loaded(module: nn.Module) -> bool:
    method = getattr(module, "quant_method", None)
    if method is not None and type(method) not in AS_LOADED:
        return False
    return type(module) is Attention or not hasattr(module, "process_weights_after_loading")
