"""Log-probabilities of tokens and entropies of their distributions, without [tokens, vocabulary] in float32."""

import functools
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from rlhf_api.estimate.activations import HEAD_ELEMENTS

from ..tensors.sampling_mask import LEFT_OUT

CHUNK_ELEMENTS = {"cpu": 256 * 152_000, "cuda": HEAD_ELEMENTS}
"""Elements of logits per log-softmax: 256 or 2,048 tokens of a vocabulary of 152,000. In float32 they take 156 MB or
1.2 GB; compiled, as on GPUs, they are never held in float32."""

Entropy = Literal["none", "value", "gradient"]
"""Entropy beside a log-probability: none, its value, or its value with a gradient, which costs memory."""


def entropies(logprobs: Tensor) -> Tensor:
    """H = -sum p log p of each row of finite log-probabilities.

    Shapes: float [n, V] in nats -> [n] in nats, from 0 to log V, same dtype.
    """
    return -(logprobs.exp() * logprobs).sum(-1)


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    entropy: Entropy,
    kept_tokens: Tensor | None = None,
    compared: Tensor | None = None,
) -> Tensor:
    """log p(target) of each row, p = softmax(logits / temperature), with `entropy` that of p, and with `compared` log p
    of these tokens. With `kept_tokens`, p is that of these tokens alone, renormalised: p_i = exp(z_i) / sum_{j kept}
    exp(z_j) with z = logits / temperature, 0 for all others.

    Shapes: `logits` float [n, V], `targets` int64 [n], `kept_tokens` int64 [n, K], K tokens with the target among them,
    some perhaps more than once, or -1 K times for all of the vocabulary, `compared` int64 [n, C] -> [n, 1] or [n, 2]
    in nats, and C columns more, float64 for float64 and float32 for all other dtypes. The caller bounds memory, n V at
    its peak, by the size of its chunks.
    Source of the mask's replay: DeepSeek-AI 2025 (DeepSeek-V3.2, arXiv:2512.02556), section 3.1, "Keep Sampling Mask".
    """
    logprobs = torch.log_softmax(_scaled(logits, temperature, kept_tokens), dim=-1)
    chosen = logprobs.gather(-1, targets[:, None])
    parts = [chosen]
    if entropy != "none":
        parts.append(entropies(logprobs if entropy == "gradient" else logprobs.detach())[:, None])
    if compared is not None:
        parts.append(logprobs.gather(-1, compared))
    return torch.cat(parts, dim=-1)


def top_logprobs(logits: Tensor, count: int, temperature: float, kept_tokens: Tensor | None = None) -> Tensor:
    """The `count` highest log p of each row, as in `token_logprobs`, then the ids of their tokens, which float32 holds
    exactly below 2^24. Where there are fewer tokens the rest is LEFT_OUT, of token 0.

    Shapes: `logits` float [n, V], `kept_tokens` as in `token_logprobs` -> float32 [n, 2 count].
    """
    logprobs = torch.log_softmax(_scaled(logits, temperature, kept_tokens), dim=-1)
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    absent = values <= LEFT_OUT / 2
    both = values.masked_fill(absent, LEFT_OUT), ids.masked_fill(absent, 0)
    missing = count - values.shape[-1]
    return torch.cat(
        [pad(x.float(), (0, missing), value=v) for x, v in zip(both, (LEFT_OUT, 0), strict=True)], -1
    )


def head_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, *, float32: bool = False) -> Tensor:
    """hidden @ weight.T + bias, in the dtype of `hidden`; with `float32` the same products, summed and left in float32
    (MiniMax 2025, arXiv:2506.13585), for which a GPU copies no weights unless it needs a gradient.

    Shapes: `hidden` [..., H], `weight` [V, H], `bias` [V] -> [..., V].
    """
    if not float32 or hidden.dtype == torch.float64:
        return linear(hidden, weight, bias)
    if hidden.is_cuda and hidden.dtype != torch.float32 and not torch.is_grad_enabled():
        products: Tensor = torch.mm(hidden.flatten(0, -2), weight.T, out_dtype=torch.float32)
        logits = products if bias is None else products + bias.float()
        return logits.view(*hidden.shape[:-1], len(weight))
    return linear(hidden.float(), weight.float(), None if bias is None else bias.float())


def linear_top_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    count: int,
    temperature: float,
    kept_tokens: Tensor | None = None,
    *,
    float32: bool = False,
) -> Tensor:
    """`top_logprobs` of the logits hidden @ weight.T + bias, one chunk at a time, without a gradient.

    Shapes: as `linear_logprobs` -> float32 [A, 2 count].
    """
    parts = []
    for part in _chunks(hidden, weight):
        mask = None if kept_tokens is None else kept_tokens[part]
        logits = head_logits(hidden[part], weight, bias, float32=float32)
        parts.append(top_logprobs(logits, count, temperature, mask))
    return torch.cat(parts)


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    entropy: Entropy = "none",
    kept_tokens: Tensor | None = None,
    compared: Tensor | None = None,
    float32: bool = False,
) -> Tensor:
    """`token_logprobs` of `head_logits`, one chunk at a time; several chunks are recomputed in the backward pass, whose
    gradient of the logits is rounded to the dtype of `hidden`.

    Shapes: `hidden` float [A, H], `weight` [V, H], `bias` [V], `targets` int64 [A], `kept_tokens` int64 [A, K],
    `compared` int64 [A, C] -> [A, 1] or [A, 2] and C columns more, as `token_logprobs`.
    """
    logprobs: Tensor = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, kept_tokens, compared, temperature, entropy, float32
    )
    return logprobs


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        kept_tokens: Tensor | None,
        compared: Tensor | None,
        temperature: float,
        entropy: Entropy,
        float32: bool,
    ) -> Tensor:
        rows, logits, parts = _kernel(token_logprobs, hidden.device.type), None, []
        for part in _chunks(hidden, weight):
            logits = head_logits(hidden[part], weight, bias, float32=float32)
            mask, others = (None if each is None else each[part] for each in (kept_tokens, compared))
            parts.append(rows(logits, targets[part], temperature, entropy, kept_tokens=mask, compared=others))
        output = torch.cat(parts)
        ctx.save_for_backward(hidden, weight, bias, targets, kept_tokens, compared, output)
        ctx.logits = logits if len(parts) == 1 else None
        ctx.temperature, ctx.of_entropy, ctx.float32 = temperature, entropy == "gradient", float32
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, kept_tokens, compared, output = ctx.saved_tensors
        (upstream,), needs = gradients, ctx.needs_input_grad
        to_hidden = torch.empty_like(hidden) if needs[0] else None
        # Sums over chunks are accumulated in float32: bfloat16 would lose small contributions of later chunks.
        to_weight = torch.zeros_like(weight, dtype=_wide_dtype(weight)) if needs[1] else None
        to_bias = torch.zeros_like(bias, dtype=_wide_dtype(bias)) if needs[2] else None
        rows = _kernel(_logits_gradient, hidden.device.type)
        for part in _chunks(hidden, weight):
            logits = ctx.logits
            if logits is None:
                logits = head_logits(hidden[part], weight, bias, float32=ctx.float32)
            to_logits = rows(
                logits,
                targets[part],
                None if kept_tokens is None else kept_tokens[part],
                None if compared is None else compared[part],
                ctx.temperature,
                output[part],
                upstream[part],
                ctx.of_entropy,
                hidden.dtype,
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
        return to_hidden, *narrow, None, None, None, None, None, None


def _logits_gradient(
    logits: Tensor,
    targets: Tensor,
    kept_tokens: Tensor | None,
    compared: Tensor | None,
    temperature: float,
    output: Tensor,
    upstream: Tensor,
    of_entropy: bool,
    dtype: torch.dtype,
) -> Tensor:
    """[n, V] in this dtype: with z the logits and p = softmax(z / T), d log p(t) / dz = (1[t] - p) / T, and
    d H / dz = -p (log p + H) / T.

    `output`: result of `token_logprobs`; `upstream`: its gradient.
    """
    logprobs = torch.log_softmax(_scaled(logits, temperature, kept_tokens), dim=-1)
    probabilities = logprobs.exp()
    columns = torch.arange(logits.shape[-1], device=logits.device)
    hit = (columns == targets[:, None]).to(probabilities.dtype)
    gradient = (hit - probabilities) * upstream[:, :1]
    if of_entropy:
        gradient = gradient - probabilities * (logprobs + output[:, 1:2]) * upstream[:, 1:2]
    if compared is not None:
        others = upstream[:, -compared.shape[-1] :].to(gradient.dtype)
        gradient = (gradient - probabilities * others.sum(-1, keepdim=True)).scatter_add(-1, compared, others)
    return (gradient / temperature).to(dtype)


def _scaled(logits: Tensor, temperature: float, kept_tokens: Tensor | None) -> Tensor:
    """logits / temperature in float32 or float64, LEFT_OUT outside `kept_tokens`."""
    scaled = logits.to(_wide_dtype(logits)) / temperature
    if kept_tokens is None:
        return scaled
    left_out = torch.ones_like(scaled, dtype=torch.bool).scatter_(-1, kept_tokens.clamp(min=0), False)
    return scaled.masked_fill(left_out & (kept_tokens[:, :1] >= 0), LEFT_OUT)


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Chunks of rows, at least one even without rows."""
    rows = max(1, CHUNK_ELEMENTS[hidden.device.type] // len(weight))
    for start in range(0, max(1, len(hidden)), rows):
        yield slice(start, start + rows)


def _wide_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@functools.cache
def _kernel(rows: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    """`rows` compiled into one kernel on a GPU with a C compiler; uncompiled elsewhere."""
    if device == "cuda" and (shutil.which("cc") or shutil.which("gcc")):
        return torch.compile(rows, dynamic=True)
    return rows
