"""Output layer of a language model that computes response tokens' log-probabilities instead of all logits."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.functional import pad

from ...maths.logprobs import head_logits
from ...maths.outputs import ResponseLogprobs
from ...tensors.batches import MicroBatch


class ResponseHead(nn.Module):
    """The output layer of a causal language model, with its own parameters under their own names.

    Inside `reading` its output is the values read from response tokens, [1, A_mb, ...] instead of logits [n, T, V];
    otherwise, as in generation, it is the linear layer that it replaces.
    """

    def __init__(self, layer: nn.Linear, *, float32: bool = False) -> None:
        """`float32`: logits are computed in float32, see `head_logits`."""
        super().__init__()
        self._float32 = float32
        self.weight = layer.weight
        self.bias = layer.bias
        self.fits = True
        """False for a model that caps or scales its logits after this layer."""
        self._requested: tuple[ResponseLogprobs, MicroBatch] | None = None
        self._output: Tensor | None = None

    @contextlib.contextmanager
    def reading(self, read: ResponseLogprobs, micro: MicroBatch) -> Iterator[None]:
        self._requested = read, micro
        try:
            yield
        finally:
            self._requested = self._output = None

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, T, H] -> logits [n, T, V], or the values read inside `reading`."""
        if self._requested is None:
            return head_logits(hidden, self.weight, self.bias, float32=self._float32)
        read, micro = self._requested
        rows = hidden[micro.response_row, micro.response_column - 1]
        logprobs = read.of_hidden(rows, self.weight, self.bias, micro, float32=self._float32)
        if not len(logprobs):  # an empty tensor has no memory by which `gave` could know it
            logprobs = pad(logprobs, (0, 0, 0, 1))[:0]
        self._output = logprobs[None]
        return self._output

    def gave(self, output: Tensor) -> bool:
        """True if the model returned this layer's output unchanged: the same memory, also through DeepSpeed."""
        own = self._output
        return (
            own is not None
            and own.shape == output.shape
            and own.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
        )


def install(model: nn.Module, *, float32: bool = False) -> None:
    """Replaces the output layer of a causal language model by a `ResponseHead`; other models stay unchanged."""
    layer = _output_layer(model)
    if type(layer) is nn.Linear:
        model.set_output_embeddings(ResponseHead(layer, float32=float32))  # type: ignore[operator]


def response_head(model: nn.Module) -> ResponseHead | None:
    """The model's `ResponseHead`, if installed."""
    layer = _output_layer(model)
    return layer if isinstance(layer, ResponseHead) else None


def _output_layer(model: nn.Module) -> object:
    find = getattr(model, "get_output_embeddings", None)
    return find() if find is not None else None
