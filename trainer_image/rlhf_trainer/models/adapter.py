"""Low-rank adapter of a Hugging Face model, through PEFT: added in place, switched off, merged, saved."""

import copy
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rlhf_api.sections.lora import Lora

from ..maths.low_rank import MAGNITUDE, A, B, LowRank
from .adapter_targets import HEADS, choose_targets, find_misread_targets, report_experts, report_misread
from .frozen import BASE, frozen_digest
from .peft_parts import DoraLinearVariant, LoraConfig, LoraLayer, ParamWrapper, inject_adapter_in_model

log = logging.getLogger(__name__)

NAME = "default"
"""PEFT's name of the one adapter of a model."""


class Adapter:
    """Matrices A and B beside the linear layers of a model (Hu et al. 2021, arXiv:2106.09685), and beside each expert's
    in the fused weights of a mixture.

    The model keeps its class, and computes W x + scale B A x; B begins as zero. Of all parameters A, B and the head of
    a reward model or critic alone require gradients. `fingerprint`: the settings, and a digest of the frozen weights.
    With `weight_decomposed` each output of a layer has a trained magnitude beside them (`LowRank`).
    """

    def __init__(self, model: PreTrainedModel, settings: Lora, seed: int, base: str) -> None:
        """`base`: the path or hub name that the saved adapter names as its model's. The same seed gives the same A.

        Raises ValueError where a target is neither a linear layer of the model nor a weight of its experts, or cannot
        be decomposed.
        """
        targets, experts = choose_targets(model, settings.target_modules)
        self._misread = find_misread_targets(model, targets)
        alpha = settings.rank if settings.alpha is None else settings.alpha
        head = next((name for name in HEADS if isinstance(getattr(model, name, None), nn.Linear)), None)
        self.config = LoraConfig(
            r=settings.rank,
            lora_alpha=alpha,  # type: ignore[arg-type]  # PEFT divides by the rank: any number will do
            target_modules=targets,
            target_parameters=experts or None,
            use_rslora=settings.rank_stabilized,
            use_dora=settings.weight_decomposed,
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
            base_model_name_or_path=base,
        )
        if experts and settings.weight_decomposed:
            raise ValueError(
                f"weightDecomposed is of linear layers alone, and {', '.join(experts)} are weights of experts; remove "
                "one of the two"
            )
        if not experts:
            report_experts(model)
        if settings.weight_decomposed:
            report_misread(model, self._misread)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # PEFT rewrites the targets of a model by its type; a list has none.
            inject_adapter_in_model(self.config, nn.ModuleList([model]) if self._misread else model)
        if head:
            getattr(model, head).requires_grad_(True)
            self.config.modules_to_save = [head]
        self.config.task_type = _task(model, head)
        layers = {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}
        self._weights = {name: _adapted(name, layer) for name, layer in layers.items()}
        self._layers: dict[str, Any] = {self._weights[name]: layer for name, layer in layers.items()}
        self.fingerprint: Mapping[str, Any] = {
            "rank": settings.rank,
            "alpha": float(alpha),
            "targetModules": sorted({*targets, *experts}),
            **({"rankStabilized": True} if settings.rank_stabilized else {}),
            **({"weightDecomposed": True} if settings.weight_decomposed else {}),
            "base": frozen_digest(model),
        }

    @contextmanager
    def off(self) -> Iterator[None]:
        """Disables the adapter by a factor of 0. Every parameter still takes part, in the same order, which is what
        ZeRO-3 expects."""
        self._scale(0)
        try:
            yield
        finally:
            self._scale(1)

    def to_merge(self, items: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The items of a state dict as `merged` needs them: A, B and magnitudes just before the weight that they
        change."""
        for name, tensor in items:
            if layer := self._layers.get(name):
                yield name + A, layer.lora_A[NAME].weight
                yield name + B, layer.lora_B[NAME].weight
                if self.config.use_dora:
                    yield name + MAGNITUDE, layer.lora_magnitude_vector[NAME].weight
            if ".lora_" not in name:
                yield name, tensor

    def merged(self, tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The merged model's tensors, of the whole ones of `to_merge`: see `LowRank.merged`."""
        matrices: list[Tensor] = []
        for name, tensor in tensors:
            if name.endswith((A, B, MAGNITUDE)):
                matrices.append(tensor)
                continue
            if matrices:
                a, b, *magnitude = matrices
                experts = len(tensor) if tensor.dim() == 3 else None
                transposed = _is_transposed(self._layers[name])
                tensor = LowRank(a, b, self.scale, transposed, experts, *magnitude).merged(tensor)
                matrices = []
            yield _plain(name), tensor

    def travelling(self, name: str) -> str:
        """Name of the tensor in a broadcast: for A, B and magnitudes the merged weight's name with a suffix, for all
        others the name in the merged model."""
        for end, matrix in ((A, "lora_A"), (B, "lora_B"), (MAGNITUDE, "lora_magnitude_vector")):
            layer = name.removesuffix(f".{matrix}.{NAME}.weight")
            if layer != name:
                return f"{_plain(self._weights[layer])}{end}"
        return _plain(name)

    @property
    def scale(self) -> float:
        """Scale of B A, the same in every layer (rank-stabilised: Kalajdzievski 2023, arXiv:2312.03732)."""
        divisor = math.sqrt(self.config.r) if self.config.use_rslora else self.config.r
        return float(self.config.lora_alpha / divisor)

    @property
    def transposed(self) -> tuple[str, ...]:
        """Weights [in, out], by their names in the merged model."""
        return tuple(_plain(name) for name, layer in self._layers.items() if _is_transposed(layer))

    def save_config(self, directory: Path) -> None:
        """Writes the settings as `PeftModel.from_pretrained` reads them; `saved_name` has the names of the weights.

        Layers whose names it misreads are written as parameters: it takes these as they are, and their tensors have the
        same names and shapes.
        """
        saved = copy.copy(self.config)
        saved.inference_mode = True
        if self._misread:
            saved.target_modules = sorted(set(saved.target_modules or ()) - self._misread)
            weights = {f"{target}.weight" for target in self._misread}
            saved.target_parameters = sorted({*(saved.target_parameters or ()), *weights})
        saved.save_pretrained(str(directory))

    def _scale(self, factor: float) -> None:
        for layer in self._layers.values():
            if self.config.use_dora:
                layer.lora_variant[NAME] = DoraLinearVariant if factor else _Undecomposed
            else:
                layer.set_scale(NAME, factor)


class _Undecomposed(DoraLinearVariant):
    """A layer with magnitudes that is switched off: its output times 0 beside the frozen layer's. A scale of 0 would
    leave m / ||W||."""

    @staticmethod
    def forward(module: Any, active_adapter: str, x: Tensor, result: Tensor, **kwargs: Any) -> Tensor:
        whole: Tensor = DoraLinearVariant.forward(module, active_adapter, x, result, **kwargs)
        return result + 0 * whole


def saved_name(name: str) -> str:
    """The name of a trained tensor in PEFT's files, of its state-dict name."""
    name = name.replace(f"_vector.{NAME}.weight", "_vector").replace(f".{NAME}.", ".")
    return f"base_model.model.{name}"


def _plain(name: str) -> str:
    return name.replace(BASE, "")


def _adapted(name: str, layer: LoraLayer) -> str:
    """State-dict name of the weight that a layer of this name changes. PEFT nests one layer for each of a module's
    parameters."""
    parameter = layer.parameter_name if isinstance(layer, ParamWrapper) else "weight"
    name += ".base_layer"
    while isinstance(layer.base_layer, ParamWrapper):
        name, layer = f"{name}.base_layer", layer.base_layer
    return f"{name}.{parameter}"


def _is_transposed(layer: Any) -> bool:
    """True for a weight [in, out]: GPT-2's layers, and the experts of gpt-oss."""
    return bool(layer.fan_in_fan_out or getattr(layer.get_base_layer(), "is_transposed", False))


def _task(model: PreTrainedModel, head: str | None) -> str:
    if head is None:
        return "CAUSAL_LM"
    return "TOKEN_CLS" if type(model).__name__.endswith("ForTokenClassification") else "SEQ_CLS"
