"""Sampling from logits as vLLM does it: penalties, truncation, the draw, and its sampling mask."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rlhf_api.sections.evaluation import Penalties
from rlhf_api.sections.sampling import Sampling

from ..tensors.sampling_mask import ROUNDING

_UNITS = 2.0**52
"""Parts of 1 that a probability is counted in: as many as a float64 has."""


def warpers(sampling: Sampling) -> Iterator[LogitsProcessor]:
    """Logits processors of temperature, min-p, top-k and top-p, in vLLM's order: `generate` has min-p last, where top-p
    counts what it leaves out. Transformers makes none itself from a configuration of 1, 0 and 1."""
    if sampling.temperature not in (0, 1):
        yield TemperatureLogitsWarper(sampling.temperature)
    if sampling.min_p > 0:
        yield MinPLogitsWarper(sampling.min_p)
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

    def take(self, index: Tensor) -> "Penalized":
        """Keeps the rows `index`, int64, in that order."""
        return Penalized(self._penalties, self._prompts[index], self._mask[index])

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


def draw(logprobs: Tensor) -> Tensor:
    """Samples one token of each row by inversion of the cumulative distribution in float64: one random number a row,
    where `torch.multinomial` draws one for every token of the vocabulary.

    float [n, V], -inf for tokens that must not be drawn -> int64 [n]. Raises FloatingPointError for NaN.
    """
    cumulative = _cumulative(logprobs.double().exp())
    total = cumulative[:, -1:]
    if bool(total.isnan().any()):
        raise FloatingPointError("the policy's logits are not numbers (NaN): its weights are damaged")
    below = torch.rand(total.shape, dtype=total.dtype, device=total.device) * total
    return torch.searchsorted(cumulative, below, right=True).squeeze(-1)


def _cumulative(probabilities: Tensor) -> Tensor:
    """Cumulative sums of float64 [n, V]. Where deterministic kernels are asked for, of whole numbers, whose sum is the
    same in any order: torch has none for floats on a GPU."""
    if not torch.are_deterministic_algorithms_enabled():
        return probabilities.cumsum(-1)
    return (probabilities * _UNITS).round().long().cumsum(-1).double() / _UNITS


def with_mask(logprobs: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the sampled `tokens`, int64 [n], and the other tokens of their sampling masks, of up to
    `most` tokens.

    float [n, V] in nats, -inf outside the mask -> float32 [n], and int64 [n, min(most, V)] padded with -1.
    """
    own = tokens[:, None]
    chosen = logprobs.gather(-1, own)
    values, likeliest = logprobs.topk(min(most, logprobs.shape[-1]), dim=-1)
    other = (likeliest != own) & values.isfinite()
    if most:
        # More than the likeliest are kept only where some tie with the last one: see `sampled_from` in
        # engines/vllm.
        total = torch.cat([chosen, values.masked_fill(~other, -torch.inf)], dim=-1).logsumexp(
            -1, keepdim=True
        )
        chosen = torch.where(total < -ROUNDING, chosen - total, chosen)
    return chosen.squeeze(-1), likeliest.masked_fill(~other, -1)
