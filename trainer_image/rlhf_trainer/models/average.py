"""Exponential moving average of a trained model's weights, used for inference: an averaged reference or critic."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed
from torch.nn import Parameter

from .trained_model import TrainedModel


class MovingAverage:
    """w <- decay w + (1 - decay) v, where v are the model's weights; float32, on its device.

    Under ZeRO-3 each rank keeps the average of its own partition. Initialised with the model's present weights.
    Source: Mei et al. 2024 (ReaL, arXiv:2406.14088), the averaged reference of its PPO.
    """

    def __init__(self, model: TrainedModel, decay: float) -> None:
        self._model, self._decay = model, decay
        self._average: dict[str, Tensor] = {}
        self.begin()

    def begin(self) -> None:
        """Begins again with the model's present weights."""
        self._average = {name: self._own(p).detach().float().clone() for name, p in self._parameters()}

    def update(self) -> None:
        """Updates the average with the model's present weights; call after each training step."""
        for name, parameter in self._parameters():
            self._average[name].lerp_(self._own(parameter).detach().float(), 1 - self._decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Swaps the average into the model; restores the model's own weights on exit, bit for bit. A collective."""
        own_weights = {name: self._own(parameter).detach().clone() for name, parameter in self._parameters()}
        self._fill(self._average)
        try:
            yield
        finally:
            self._fill(own_weights)

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Whole averaged parameters, float32, by name; a collective, in a fixed order."""
        for name, parameter in self._parameters():
            own = self._average[name]
            if self._model.stage < 3:
                yield name, own
                continue
            parts = [torch.empty_like(own) for _ in range(self._model.world_size)]
            distributed.all_gather(parts, own)
            yield name, torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape)  # type: ignore[attr-defined]

    def load(self, get: Callable[[str], Tensor]) -> None:
        """Inverse of `state`: `get` returns the whole tensor of a name, on every rank."""
        for name, _ in self._parameters():
            own, value = self._average[name], get(name).to(self._model.device, torch.float32)
            if self._model.stage == 3:
                size = own.numel()
                padded = torch.nn.functional.pad(
                    value.flatten(), (0, size * self._model.world_size - value.numel())
                )
                value = padded[size * self._model.rank : size * (self._model.rank + 1)]
            own.copy_(value)

    def _fill(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad(), self._only_partitions():
            for name, parameter in self._parameters():
                self._own(parameter).copy_(values[name])

    @contextmanager
    def _only_partitions(self) -> Iterator[None]:
        """Under ZeRO-3, without the whole copies of small parameters that DeepSpeed keeps on every rank between forward
        passes; they are gathered again on exit. A collective."""
        if self._model.stage < 3:
            yield
            return
        optimizer = self._model.deepspeed.optimizer
        optimizer.checkpoint_event_prologue()
        yield
        optimizer.checkpoint_event_epilogue()

    def _own(self, parameter: Parameter) -> Tensor:
        """This rank's partition of a parameter."""
        part: Tensor = parameter.ds_tensor if self._model.stage == 3 else parameter.data  # type: ignore[attr-defined]
        return part

    def _parameters(self) -> Iterator[tuple[str, Parameter]]:
        for name, tensor in self._model.state_items():
            if isinstance(tensor, Parameter):
                yield name, tensor
