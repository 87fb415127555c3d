"""Log-probabilities of tokens and entropies of their distributions, without [tokens, vocabulary] in float32."""

import functools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

CHUNK_ELEMENTS = {"cpu": 256 * 152_000, "cuda": 2048 * 152_000}
"""Logits whose log-softmax is computed at once: 256 or 2,048 tokens of a vocabulary of 152,000. In float32 they take
156 MB or 1.2 GB; compiled, as on GPUs, they are never held in float32."""


def entropy(logprobs: Tensor) -> Tensor:
    """H = -sum p log p of each row of finite log-probabilities.

    Shapes: float [n, V] in nats -> [n] in nats, from 0 to log V, same dtype.
    """
    return -(logprobs.exp() * logprobs).sum(-1)


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    with_entropy: bool,
    differentiable_entropy: bool = True,
) -> Tensor:
    """log p(target) of each row, p = softmax(logits / temperature), and beside it the entropy of p where wanted, which
    has a gradient only where `differentiable_entropy`.

    Shapes: `logits` float [n, V], `targets` int64 [n] -> [n, 1] or [n, 2] in nats, float64 for float64 and float32 for
    all other dtypes. The caller bounds memory, n V at its peak, by the size of its chunks.
    """
    logprobs = torch.log_softmax(_wide(logits) / temperature, dim=-1)
    chosen = logprobs.gather(-1, targets[:, None])
    if not with_entropy:
        return chosen
    of_rows = entropy(logprobs if differentiable_entropy else logprobs.detach())
    return torch.cat([chosen, of_rows[:, None]], dim=-1)


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    with_entropy: bool = False,
    differentiable_entropy: bool = False,
) -> Tensor:
    """`token_logprobs` of the logits hidden @ weight.T + bias. The logits of one chunk at a time are held, in the dtype
    of `hidden`, and computed again for the backward pass where there are several.

    Shapes: `hidden` float [A, H], `weight` [V, H], `bias` [V], `targets` int64 [A] -> [A, 1] or [A, 2], as there.
    The entropy has a gradient only where `differentiable_entropy`.
    """
    found: Tensor = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature, with_entropy, differentiable_entropy
    )
    return found


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
        differentiable_entropy: bool,
    ) -> Tensor:
        rows, logits, parts = _kernel(token_logprobs, hidden.device.type), None, []
        for part in _chunks(hidden, weight):
            logits = linear(hidden[part], weight, bias)
            parts.append(rows(logits, targets[part], temperature, with_entropy))
        output = torch.cat(parts)
        ctx.save_for_backward(hidden, weight, bias, targets, output)
        ctx.logits = logits if len(parts) == 1 else None
        ctx.temperature, ctx.differentiable_entropy = temperature, with_entropy and differentiable_entropy
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, output = ctx.saved_tensors
        (upstream,), wanted = gradients, ctx.needs_input_grad
        to_hidden = torch.empty_like(hidden) if wanted[0] else None
        # Sums over chunks are in float32: bfloat16 would lose what later chunks add.
        to_weight = torch.zeros_like(weight, dtype=_wide_dtype(weight)) if wanted[1] else None
        to_bias = torch.zeros_like(bias, dtype=_wide_dtype(bias)) if wanted[2] else None
        rows = _kernel(_logits_gradient, hidden.device.type)
        for part in _chunks(hidden, weight):
            logits = linear(hidden[part], weight, bias) if ctx.logits is None else ctx.logits
            to_logits = rows(
                logits,
                targets[part],
                ctx.temperature,
                output[part],
                upstream[part],
                ctx.differentiable_entropy,
            )
            if to_hidden is not None:
                to_hidden[part] = to_logits @ weight
            if to_weight is not None:
                to_weight += to_logits.T @ hidden[part]
            if to_bias is not None:
                to_bias += to_logits.sum(0, dtype=to_bias.dtype)
        narrow = [
            None if sums is None else sums.to(like.dtype)
            for sums, like in ((to_weight, weight), (to_bias, bias))
        ]
        return to_hidden, *narrow, None, None, None, None


def _logits_gradient(
    logits: Tensor, targets: Tensor, temperature: float, output: Tensor, upstream: Tensor, of_entropy: bool
) -> Tensor:
    """[n, V] in the dtype of `logits`: with z the logits and p = softmax(z / T), d log p(t) / dz = (1[t] - p) / T, and
    d H / dz = -p (log p + H) / T.

    `output` is what `token_logprobs` gave, `upstream` the gradient of it.
    """
    logprobs = torch.log_softmax(_wide(logits) / temperature, dim=-1)
    probabilities = logprobs.exp()
    columns = torch.arange(logits.shape[-1], device=logits.device)
    hit = (columns == targets[:, None]).to(probabilities.dtype)
    gradient = (hit - probabilities) * upstream[:, :1]
    if of_entropy:
        gradient = gradient - probabilities * (logprobs + output[:, 1:]) * upstream[:, 1:]
    return (gradient / temperature).to(logits.dtype)


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """At least one, also without rows."""
    rows = max(1, CHUNK_ELEMENTS[hidden.device.type] // len(weight))
    for start in range(0, max(1, len(hidden)), rows):
        yield slice(start, start + rows)


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _wide(x: Tensor) -> Tensor:
    return x.to(_wide_dtype(x))


@functools.cache
def _kernel(rows: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """`rows` as one kernel on a GPU, where there is a C compiler to build it with; as it is elsewhere."""
    if device == "cuda" and (shutil.which("cc") or shutil.which("gcc")):
        return torch.compile(rows, dynamic=True)
    return rows
