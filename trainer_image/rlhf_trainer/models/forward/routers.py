"""Routers of a mixture of experts: forward hooks that record the choices of a pass, or replay those of another."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_api.errors.problem import InvalidJob, Problem

from ...tensors.expert_rows import UNKNOWN, ExpertsShape


@dataclass(frozen=True)
class Routing:
    """The router's `logits` [T, E] of a layer's tokens, the experts `chosen` for each, int64 [T, K], the router's
    `own`, and where choices are replayed these, int16 [T, K], UNKNOWN for none."""

    logits: Tensor
    chosen: Tensor
    own: Tensor
    replayed: Tensor | None


class Routers:
    """The routers of a model, one a layer of experts, in the order of the layers.

    `shape`: of the choices for a token. `can_replay`: the weights of a token's experts follow from their logits, by a
    softmax over all experts or over the chosen ones, as a trial of the first router showed.
    """

    def __init__(self, modules: Sequence[nn.Module], logits_at: int, tried: tuple[Tensor, ...]) -> None:
        """`logits_at`: the place of the logits in a router's output; `tried`: the first one's output for some
        tokens."""
        normalizes = _normalizes(tried, logits_at)
        self.shape = ExpertsShape(
            len(modules), *(tried[at].shape[1] for at in (_choices_at(tried), logits_at))
        )
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
                return cls(routers, place, output)
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
        """Has the routers choose `choices`, int16 [T, L, K], for the T tokens of an input, UNKNOWN where the router
        itself chooses; None for all. The weights of the experts are those of the present logits, with their gradient
        (Zheng et al. 2025, arXiv:2507.18071, section 5.3). To be left after the backward pass, which may compute layers
        again."""
        self._replayed = choices
        try:
            yield
        finally:
            self._replayed = None

    def _route(
        self, layer: int, _module: nn.Module, _inputs: object, output: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        at, replayed = _choices_at(output), None
        own = output[at]
        if self._replayed is not None:
            replayed = self._replayed[:, layer]
            output = self._chosen(output, replayed)
        if self._record is not None:  # computes nothing: a layer computed again must save the same tensors
            self._record.append(Routing(output[self._logits_at], output[at], own, replayed))
        return output

    def _chosen(self, output: tuple[Tensor, ...], replayed: Tensor) -> tuple[Tensor, ...]:
        """The router's output with the replayed experts and their weights."""
        at = _choices_at(output)
        chosen = torch.where(replayed == UNKNOWN, output[at], replayed.to(output[at].dtype))
        scores = _weights(output[self._logits_at], chosen, bool(self._normalizes))
        places = {at: chosen, _scores_at(self._logits_at, at): scores}
        return tuple(places[i].to(part.dtype) if i in places else part for i, part in enumerate(output))


def check_replayed(model: PreTrainedModel, routers: Routers | None, *, of_engine: bool) -> None:
    """Raises InvalidJob for a model whose routers cannot replay choices, or not those `of_engine`, which has a place
    for each layer: vLLM does not tell which layers have no experts."""
    kind = type(model).__name__
    if routers is None:
        reason = f"needs a mixture of experts, which {kind} is not; leave it out"
    elif not routers.can_replay:
        reason = f"needs routers whose weights are a softmax, which {kind} has not; use none"
    elif of_engine and (has := routers.shape.layers) != (layers := _layers_of(model)):
        reason = f"needs experts in every layer of {kind}, and {has} of {layers} have some; use policy"
    else:
        return
    raise InvalidJob([Problem("spec.experts.replay", reason)])


def _layers_of(model: PreTrainedModel) -> int:
    count: int = model.config.get_text_config().num_hidden_layers
    return count


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
