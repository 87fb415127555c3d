"""Routers of a mixture of experts: forward hooks that record the choices of a pass, or replay those of another."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
    """The routers of a model, one a layer of experts, in the order of the layers.

    `can_replay`: the weights of a token's experts follow from their logits, by a softmax over all experts or over the
    chosen ones, as a trial of the first router showed.
    """

    def __init__(self, modules: Sequence[nn.Module], logits_at: int, normalizes: bool | None) -> None:
        """`logits_at`: the place of the logits in a router's output; `normalizes`: whether the weights of a token's
        experts sum to 1, None where they do not follow from the logits."""
        self._logits_at, self._normalizes = logits_at, normalizes
        self.can_replay = normalizes is not None
        self._record: list[Routing] | None = None
        self._replayed: Tensor | None = None
        for layer, module in enumerate(modules):
            module.register_forward_hook(partial(self._route, layer))

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """The routers that the model's class names to Transformers and that return logits and choices; None for other
        models."""
        for module in model.modules():
            declared: Any = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
            kind, place = getattr(declared, "target_class", None), getattr(declared, "index", 0)
            routers = [each for each in model.modules() if kind is not None and isinstance(each, kind)]
            if routers and (output := _tried(routers[0], model.config.get_text_config().hidden_size, place)):
                return cls(routers, place, _normalizes(output, place))
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

    @contextmanager
    def replaying(self, choices: Tensor | None) -> Iterator[None]:
        """Has the routers choose `choices`, int16 [T, L, K], for the T tokens of an input, -1 where the router itself
        chooses; None for all. The weights of the experts are those of the present logits, with their gradient (Zheng et
        al. 2025, arXiv:2507.18071, section 5.3). To be left after the backward pass, which may compute layers again."""
        self._replayed = choices
        try:
            yield
        finally:
            self._replayed = None

    def _route(
        self, layer: int, _module: nn.Module, _inputs: object, output: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        if self._replayed is not None:
            output = self._chosen(output, self._replayed[:, layer])
        if self._record is not None:  # computes nothing: a layer computed again must save the same tensors
            self._record.append(Routing(output[self._logits_at], output[_choices_at(output)]))
        return output

    def _chosen(self, output: tuple[Tensor, ...], replayed: Tensor) -> tuple[Tensor, ...]:
        """The router's output with the replayed experts and their weights."""
        at = _choices_at(output)
        chosen = torch.where(replayed < 0, output[at], replayed.to(output[at].dtype))
        scores = _weights(output[self._logits_at], chosen, bool(self._normalizes))
        places = {at: chosen, _scores_at(self._logits_at, at): scores}
        return tuple(places[i].to(part.dtype) if i in places else part for i, part in enumerate(output))


def _tried(router: nn.Module, width: int, place: int) -> tuple[Tensor, ...] | None:
    """The router's output for some tokens, if it has logits at `place`, choices, and their weights; else None."""
    weight = next(router.parameters())
    tokens = torch.linspace(-1, 1, 7 * width).sin().view(7, width).to(weight)
    try:
        with torch.no_grad():
            output: tuple[Tensor, ...] = router(tokens)
        shapes = [part.shape for part in output]
        at = _choices_at(output)
        return output if len(shapes) == 3 and shapes[place][0] == shapes[at][0] == 7 else None
    except (AttributeError, IndexError, RuntimeError, StopIteration, TypeError):
        return None


def _normalizes(output: tuple[Tensor, ...], place: int) -> bool | None:
    """True if the weights of the chosen experts are a softmax over these, False if over all, None if neither."""
    at = _choices_at(output)
    scores = output[_scores_at(place, at)].float()
    for normalizes in (True, False):
        expected = _weights(output[place], output[at], normalizes)
        if scores.shape == expected.shape and torch.allclose(scores, expected, rtol=1e-2, atol=1e-5):
            return normalizes
    return None


def _weights(logits: Tensor, chosen: Tensor, normalizes: bool) -> Tensor:
    """float32 [T, K]: the weight of each chosen expert of a token."""
    probabilities = logits.float().softmax(-1).gather(1, chosen.long())
    return probabilities / probabilities.sum(-1, keepdim=True) if normalizes else probabilities


def _choices_at(output: tuple[Tensor, ...]) -> int:
    return next(i for i, part in enumerate(output) if not part.is_floating_point())


def _scores_at(logits_at: int, choices_at: int) -> int:
    return 3 - logits_at - choices_at
