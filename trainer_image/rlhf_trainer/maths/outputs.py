"""Functions that read a model's output: log-probabilities, values and scores of the rows of a micro-batch."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..tensors.batches import MicroBatch
from .logprobs import CHUNK_ELEMENTS, Entropy, token_logprobs


@dataclass(frozen=True)
class ResponseLogprobs:
    """Reads the log-probability in nats of every response token: log softmax(logits / temperature) at the column before
    it, restricted to the sampling mask where the batch has one. With `entropy`, also the entropy in nats of that
    distribution, as a second column.
    """

    temperature: float = 1.0
    entropy: Entropy = "none"

    def __call__(self, logits: Tensor, micro: MicroBatch) -> Tensor:
        """logits [n, T, V] of any float dtype -> float32 [A_mb], or [A_mb, 2] with entropies. Computed in float32, in
        chunks; several chunks are recomputed in the backward pass.
        """
        # One gather for all chunks: its backward pass allocates a gradient of the size of the logits only once.
        selected = logits[micro.response_row, micro.response_column - 1]
        rows = max(1, CHUNK_ELEMENTS[logits.device.type] // logits.shape[-1])
        parts = selected.split(rows)
        kept_chunks = [None] * len(parts) if micro.kept is None else list(micro.kept.split(rows))
        chunks = list(zip(parts, micro.targets.split(rows), kept_chunks, strict=True))
        if len(chunks) == 1:
            return self._of(*chunks[0])
        again = partial(checkpoint, self._of, use_reentrant=False, preserve_rng_state=False)
        return torch.cat([(again if selected.requires_grad else self._of)(*chunk) for chunk in chunks])

    def _of(self, logits: Tensor, targets: Tensor, kept_tokens: Tensor | None) -> Tensor:
        logprobs = token_logprobs(logits, targets, self.temperature, self.entropy, kept_tokens)
        return self.columns(logprobs)

    def columns(self, logprobs: Tensor) -> Tensor:
        """[A, 1] -> [A]; [A, 2] with entropies stays."""
        return logprobs[:, 0] if self.entropy == "none" else logprobs


class ResponseEntropies(ResponseLogprobs):
    """Reads, with `entropy`, the entropy of every response token's distribution alone."""

    def columns(self, logprobs: Tensor) -> Tensor:
        """[A, 2] -> the entropies, [A]."""
        return logprobs[:, 1]


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
    """A reward model's score of each row: logits [n, 1], pooled by the model -> float32 [n]."""
    return logits[: len(micro.rows), 0].float()
