"""A language model's output layer that computes log-probabilities of response tokens instead of logits of all."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import linear

from ..batches import MicroBatch, ResponseLogprobs
from ..maths.logprobs import linear_logprobs


class ResponseHead(nn.Module):
    """The output layer of a causal language model, with its own parameters under their own names.

    Within `reading` its output is what is read of the response tokens alone, [1, A_mb, 1 or 2] in place of
    [n, T, V] logits; elsewhere, as in generation, it is the linear layer that it stands for.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.fits = True
        """Nothing follows this layer: False for a model that caps or scales its logits."""
        self._wanted: tuple[ResponseLogprobs, MicroBatch] | None = None
        self._output: Tensor | None = None

    @contextlib.contextmanager
    def reading(self, read: ResponseLogprobs, micro: MicroBatch) -> Iterator[None]:
        self._wanted = read, micro
        try:
            yield
        finally:
            self._wanted = self._output = None

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, T, H] -> [n, T, V], or what is read."""
        if self._wanted is None:
            return linear(hidden, self.weight, self.bias)
        read, micro = self._wanted
        rows = hidden[micro.response_row, micro.response_column - 1]
        found = linear_logprobs(
            rows,
            self.weight,
            self.bias,
            micro.targets,
            read.temperature,
            with_entropy=read.entropy,
            differentiable_entropy=read.differentiable,
            kept=micro.kept,
        )
        self._output = found[None]
        return self._output

    def gave(self, output: Tensor) -> bool:
        """The model gave out what this layer did: the same memory, behind DeepSpeed's wrapping too."""
        own = self._output
        return (
            own is not None
            and own.shape == output.shape
            and own.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
        )


def install(model: nn.Module) -> None:
    """Replaces the output layer of a causal language model by a `ResponseHead`; leaves all other models."""
    layer = _output_layer(model)
    if type(layer) is nn.Linear:
        model.set_output_embeddings(ResponseHead(layer))  # type: ignore[operator]


def response_head(model: nn.Module) -> ResponseHead | None:
    """The `ResponseHead` of a model that got one."""
    layer = _output_layer(model)
    return layer if isinstance(layer, ResponseHead) else None


def _output_layer(model: nn.Module) -> object:
    find = getattr(model, "get_output_embeddings", None)
    return find() if find is not None else None
