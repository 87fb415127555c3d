"""Routers of a mixture of experts: forward hooks that record the choices of each forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Routing:
    """The router's `logits` [T, E] of a layer's tokens, and the experts `chosen` for each, int64 [T, K]."""

    logits: Tensor
    chosen: Tensor


class Routers:
    """The routers of a model, one a layer of experts, in the order of the layers."""

    def __init__(self, modules: Sequence[nn.Module], logits_at: int) -> None:
        """`logits_at`: the place of the logits in a router's output."""
        self._logits_at = logits_at
        self._record: list[Routing] | None = None
        for module in modules:
            module.register_forward_hook(self._note)

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """The routers that the model's class names to Transformers and that return logits and choices; None for other
        models."""
        for module in model.modules():
            declared: Any = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
            kind, place = getattr(declared, "target_class", None), getattr(declared, "index", 0)
            routers = [each for each in model.modules() if kind is not None and isinstance(each, kind)]
            if routers and _chooses(routers[0], model.config.get_text_config().hidden_size, place):
                return cls(routers, place)
        return None

    @contextmanager
    def recording(self) -> Iterator[list[Routing]]:
        """Collects the routings of the forward pass within, but not of layers computed again in a backward pass."""
        record: list[Routing] = []
        self._record = record
        try:
            yield record
        finally:
            self._record = None

    def _note(self, _module: nn.Module, _inputs: object, output: tuple[Tensor, ...]) -> None:
        if self._record is not None:  # computes nothing: a layer computed again must save the same tensors
            self._record.append(Routing(output[self._logits_at], _choices(output)))


def _chooses(router: nn.Module, width: int, place: int) -> bool:
    """True if the router's output, tried on one token, has logits at `place` and choices."""
    weight = next(router.parameters())
    try:
        with torch.no_grad():
            output = router(torch.zeros(1, width, dtype=weight.dtype, device=weight.device))
        return output[place].ndim == 2 and _choices(output).ndim == 2
    except (AttributeError, IndexError, RuntimeError, StopIteration, TypeError):
        return False


def _choices(output: tuple[Tensor, ...]) -> Tensor:
    return next(part for part in output if not part.is_floating_point())
