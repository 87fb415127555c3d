"""Logits processors and stopping criteria for Hugging Face's `generate` that match vLLM's sampling."""

import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rlhf_api.evaluation import Penalties
from rlhf_api.spec import Sampling

from .. import progress
from ..data.stop_strings import StopStrings
from ..sampling_mask import ROUNDING


def warpers(sampling: Sampling) -> Iterator[LogitsProcessor]:
    """Logits processors that `generate` makes from temperature, top-k and top-p, in its order; its own would run after
    the recorder."""
    if sampling.temperature not in (0, 1):
        yield TemperatureLogitsWarper(sampling.temperature)
    if sampling.top_k > 0:
        yield TopKLogitsWarper(sampling.top_k)
    if sampling.top_p < 1:
        yield TopPLogitsWarper(sampling.top_p)


class Penalized(LogitsProcessor):
    """Repetition, presence and frequency penalties in vLLM's order and formulas; Hugging Face's own would count
    padding.
    """

    def __init__(self, penalties: Penalties, prompts: Tensor, mask: Tensor) -> None:
        """`prompts` int64 [n, P] with padding where the `mask`, int64 of that shape, is 0."""
        self._penalties, self._prompts, self._mask = penalties, prompts, mask

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`scores` float [n, V], given the tokens so far, int64 [n, T]."""
        response = input_ids[:, self._prompts.shape[1] :]
        counts = torch.zeros_like(scores).scatter_add_(
            1, response, torch.ones_like(response, dtype=scores.dtype)
        )
        prompted = torch.zeros_like(scores).scatter_add_(1, self._prompts, self._mask.to(scores.dtype))
        repetition, presence, frequency = self._penalties
        lower = torch.where(scores > 0, scores / repetition, scores * repetition)
        scores = torch.where(counts + prompted > 0, lower, scores)
        return scores - frequency * counts - presence * (counts > 0)


class Interrupted(StoppingCriteria):
    """Stops all responses once the run is to stop."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:  # noqa: ARG002
        """int64 [n, T] -> bool [n]; a sign of progress, for each token."""
        progress.sign()
        return torch.full((len(input_ids),), self._stop.is_set(), device=input_ids.device)


class AtStopStrings(StoppingCriteria):
    """Stops each response at the token that completes a stop string, except in its first `least` tokens; `lengths`: row
    -> tokens of the responses stopped here."""

    def __init__(self, stops: StopStrings, width: int, least: int) -> None:
        """`width`: tokens of the padded prompts."""
        self._stops, self._width, self._least = stops, width, least
        self.lengths: dict[int, int] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:  # noqa: ARG002
        """int64 [n, T] -> bool [n]."""
        length = input_ids.shape[1] - self._width
        if self._stops.strings and length > self._least:
            tails = input_ids[:, max(self._width, input_ids.shape[1] - self._stops.window) :].tolist()
            for row, tail in enumerate(tails):
                if row not in self.lengths and self._stops.ending(tail) is not None:
                    self.lengths[row] = length
        return torch.tensor([row in self.lengths for row in range(len(input_ids))], device=input_ids.device)


class Recorder(LogitsProcessor):
    """Records the log-probabilities of sampled tokens, and up to `most` tokens of each one's sampling mask, during
    generation: the logits of one step are held, never of all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: Tensor | None = None
        self._found: list[Tensor] = []
        self._kept: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`scores` float [n, V], processed as for sampling, given the tokens so far, int64 [n, T]."""
        self._take(input_ids)
        self._last = scores.float().log_softmax(-1)
        return scores

    def found(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each new token of `sequences`, float32 [n, new], and the other tokens of its sampling
        mask, int64 [n, new, most], padded with -1; on the CPU."""
        self._take(sequences)
        return torch.stack(self._found, dim=1).cpu(), torch.stack(self._kept, dim=1).cpu()

    def _take(self, input_ids: Tensor) -> None:
        if self._last is None:
            return
        own = input_ids[:, -1:]
        chosen = self._last.gather(-1, own)
        values, tokens = self._last.topk(min(self._most, self._last.shape[-1]), dim=-1)
        other = (tokens != own) & values.isfinite()
        if self._most:
            # More than the likeliest are kept only where some tie with the last one: see `sampled_from` in
            # engines/vllm.
            total = torch.cat([chosen, values.masked_fill(~other, -torch.inf)], dim=-1).logsumexp(
                -1, keepdim=True
            )
            chosen = torch.where(total < -ROUNDING, chosen - total, chosen)
        self._found.append(chosen.squeeze(-1))
        self._kept.append(tokens.masked_fill(~other, -1))
