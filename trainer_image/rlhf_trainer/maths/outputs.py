"""Functions that read a model's output: log-probabilities, values and scores of the rows of a micro-batch."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..tensors.batches import MicroBatch
from ..tensors.packed import to_device
from .logprobs import (
    CHUNK_ELEMENTS,
    Entropy,
    linear_logprobs,
    linear_top_logprobs,
    token_logprobs,
    top_logprobs,
)


@dataclass(frozen=True)
class ResponseLogprobs:
    """Reads the log-probability in nats of every response token: log softmax(logits / temperature) at the column before
    it, restricted to the sampling mask where the batch has one. With `entropy`, also the entropy in nats of that
    distribution, as a second column. `compared`: int64 [A, C] on the CPU, response-aligned, tokens whose
    log-probabilities are the next C columns.
    """

    temperature: float = 1.0
    entropy: Entropy = "none"
    compared: Tensor | None = None

    def __call__(self, logits: Tensor, micro: MicroBatch) -> Tensor:
        """logits [n, T, V] of any float dtype -> float32 [A_mb], or [A_mb, 1 or 2, and C]. Computed in float32, in
        chunks; several chunks are recomputed in the backward pass.
        """
        # One gather for all chunks: its backward pass allocates a gradient of the size of the logits only once.
        selected = logits[micro.response_row, micro.response_column - 1]
        rows = max(1, CHUNK_ELEMENTS[logits.device.type] // logits.shape[-1])
        parts = selected.split(rows)
        kept_chunks, compared_chunks = (
            [None] * len(parts) if each is None else list(each.split(rows))
            for each in (micro.kept, self._compared_of(micro))
        )
        chunks = list(zip(parts, micro.targets.split(rows), kept_chunks, compared_chunks, strict=True))
        if len(chunks) == 1:
            return self._of(*chunks[0])
        again = partial(checkpoint, self._of, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([(again if selected.requires_grad else self._of)(*chunk) for chunk in chunks])

    def of_hidden(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, micro: MicroBatch, *, float32: bool = False
    ) -> Tensor:
        """The same, before `columns`, from the last layer's input at the response tokens: `hidden` [A_mb, H].
        `float32`: see `head_logits`."""
        return linear_logprobs(
            hidden,
            weight,
            bias,
            micro.targets,
            self.temperature,
            entropy=self.entropy,
            kept_tokens=micro.kept,
            compared=self._compared_of(micro),
            float32=float32,
        )

    def _compared_of(self, micro: MicroBatch) -> Tensor | None:
        if self.compared is None:
            return None
        # Other rows may follow those that are compared (pretraining text): what is read of them is not used.
        index = micro.response_index.clamp(max=len(self.compared) - 1)
        return to_device(self.compared[index], micro.targets.device)

    def _of(
        self, logits: Tensor, targets: Tensor, kept_tokens: Tensor | None, compared: Tensor | None
    ) -> Tensor:
        logprobs = token_logprobs(logits, targets, self.temperature, self.entropy, kept_tokens, compared)
        return self.columns(logprobs)

    def columns(self, logprobs: Tensor) -> Tensor:
        """[A, 1] -> [A]; more columns stay."""
        return logprobs[:, 0] if logprobs.shape[1] == 1 else logprobs


class ResponseEntropies(ResponseLogprobs):
    """Reads, with `entropy`, the entropy of every response token's distribution alone."""

    def columns(self, logprobs: Tensor) -> Tensor:
        """[A, 2] -> the entropies, [A]."""
        return logprobs[:, 1]


@dataclass(frozen=True)
class TopLogprobs(ResponseLogprobs):
    """Reads the `count` most probable tokens at each response token's place: [A, 2 count], see `top_logprobs`."""

    count: int = 1

    def of_hidden(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, micro: MicroBatch, *, float32: bool = False
    ) -> Tensor:
        return linear_top_logprobs(
            hidden, weight, bias, self.count, self.temperature, micro.kept, float32=float32
        )

    def _of(
        self, logits: Tensor, _targets: Tensor, kept_tokens: Tensor | None, _compared: Tensor | None
    ) -> Tensor:
        return top_logprobs(logits, self.count, self.temperature, kept_tokens)


def response_values(logits: Tensor, micro: MicroBatch) -> Tensor:
    """A critic's value of the state before each response token (the column before it).

    logits [n, T, 1] -> float32 [A_mb], in units of reward.
    """
    return logits[micro.response_row, micro.response_column - 1, 0].float()


def token_scores(logits: Tensor, micro: MicroBatch) -> Tensor:
    """A fine-grained reward model's score of each response token, at the token's own column.

    logits [n, T, 1] -> float32 [A_mb], in units of reward.
    """
    return logits[micro.response_row, micro.response_column, 0].float()


def sequence_scores(logits: Tensor, micro: MicroBatch) -> Tensor:
    """A reward model's score of each row, of one with branches that of the last: logits [s, 1], pooled by the model ->
    float32 [n]."""
    return logits[micro.last_parts, 0].float()
