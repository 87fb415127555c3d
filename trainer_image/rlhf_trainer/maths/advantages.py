"""Advantages of response tokens: generalized advantages, returns-to-go, whitening, REINFORCE++, and which have any."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..tensors.ragged import check_lengths


def generalized_advantages(
    rewards: Tensor, values: Tensor, lengths: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """A_t = delta_t + gamma lambda A_{t+1}, where delta_t = r_t + gamma V_{t+1} - V_t; and returns A_t + V_t.

    `values[t]` is V of the state in which token t is chosen; V after a response's last token is 0.
    Shapes: `rewards`, `values` float [A] in units of reward, `lengths` int64 [N] -> (advantages, returns), both [A] in
    units of reward, same dtype. Raises ValueError where `lengths` do not fit.
    Source: Schulman et al. 2015 (arXiv:1506.02438), eq. 16.
    """
    check_lengths(rewards, lengths)
    check_lengths(values, lengths)
    ends = lengths.cumsum(0) - 1
    deltas = rewards - values
    deltas[:-1].add_(values[1:], alpha=gamma)
    deltas[ends] = rewards[ends] - values[ends]
    advantages = discounted_sums_(deltas, lengths, gamma * gae_lambda)
    return advantages, advantages + values


def discounted_sums_(x: Tensor, lengths: Tensor, discount: float) -> Tensor:
    """S_t = x_t + discount S_{t+1}, 0 after a response's last token; in place.

    A blocked scan: `_ROWS` tokens at a time are padded, and need a few times their own memory.
    Shapes: `x` float [A] in any unit, `lengths` int64 [N] that fit it -> `x`. `discount` in [0, 1].
    Source: Blelloch 1990, "Prefix Sums and Their Applications", section 1.4 (recurrences as scans).
    """
    for part, rows in _chunks(x, lengths.tolist()):
        sums = _suffix_sums(pad_sequence(part.split(rows), batch_first=True), discount)
        torch.cat([row[:length] for row, length in zip(sums, rows, strict=True)], out=part)
    return x


_ROWS = 1 << 21
"""Elements that are padded at a time: 8 MB in float32."""
_BLOCK = 64
"""Tokens of a block."""


def _chunks(x: Tensor, lengths: Sequence[int]) -> Iterator[tuple[Tensor, list[int]]]:
    """Views of consecutive responses that have at most `_ROWS` elements when padded, or of one response, with their
    lengths."""
    start, longest, rows = 0, 0, list[int]()
    for length in lengths:
        if rows and (len(rows) + 1) * max(length, longest) > _ROWS:
            yield x[start : start + sum(rows)], rows
            start, rows = start + sum(rows), []
        longest = max(longest, length) if rows else length
        rows.append(length)
    if rows:
        yield x[start:], rows


def _suffix_sums(rows: Tensor, discount: float) -> Tensor:
    """S[:, t] = rows[:, t] + discount S[:, t + 1]: within blocks of all rows at once, then over the blocks' first sums.

    Each operation is over contiguous tokens and elementwise, so a row's result is bitwise the same among any others.
    """
    count, length = rows.shape
    size = min(length, _BLOCK)
    whole = torch.nn.functional.pad(rows, (0, -length % size)) if length % size else rows
    steps = whole.view(-1, size).t().clone(memory_format=torch.contiguous_format)
    columns = steps.unbind()
    for column, following in zip(columns[-2::-1], columns[:0:-1], strict=True):
        column.add_(following, alpha=discount)
    if length > size:
        blocks = steps.view(size, count, -1)
        decay = torch.tensor([discount ** (size - t) for t in range(size)], dtype=torch.float64).to(rows)
        blocks[:, :, :-1].addcmul_(decay[:, None, None], _suffix_sums(blocks[0], discount**size)[:, 1:])
    return steps.t().reshape(count, -1)[:, :length]


def returns_to_go(rewards: Tensor, lengths: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_{t+1}, 0 after a response's last token.

    Shapes: `rewards` float [A] in units of reward, `lengths` int64 [N] -> [A] in the same unit and dtype.
    Raises ValueError where `lengths` do not fit.
    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 3.9; the generalized advantage of
    Schulman et al. 2015 (arXiv:1506.02438) with V = 0 and lambda = 1.
    """
    return generalized_advantages(rewards, torch.zeros_like(rewards), lengths, gamma, gae_lambda=1.0)[0]


def whiten(x: Tensor, epsilon: float = 1e-8, mask: Tensor | None = None) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over all response tokens, population variance: one token gives 0.

    With a `mask`, mean and variance are taken over its tokens, and the others become 0.
    Shapes: float [A], A >= 1, any unit, `mask` bool [A] -> [A] without a unit, same dtype; mean 0, standard deviation
    1. Pass the whole batch in one call: a part of it has another mean and variance.
    Source: Huang et al. 2022, "The 37 Implementation Details of PPO", detail 7 (advantage normalisation).
    """
    if mask is not None:
        whitened = torch.zeros_like(x)
        whitened[mask] = whiten(x[mask], epsilon)
        return whitened
    deviations = x - x.mean()
    return deviations * torch.rsqrt(deviations.square().mean() + epsilon)


def highest(x: Tensor, share: float, mask: Tensor | None = None) -> Tensor:
    """True for the ceil(share n) highest of n tokens and whatever equals the lowest of them; of those in `mask` alone.

    Of entropies these are the tokens at which a response forks: they alone have a policy gradient in Wang et al.
    Shapes: float [A], any unit, `mask` bool [A] -> bool [A]. `share` in (0, 1].
    Source: Wang et al. 2025 (arXiv:2506.01939), section 5.
    """
    counted = x if mask is None else x[mask]
    if not len(counted):
        return torch.zeros_like(x, dtype=torch.bool)
    lowest = counted.topk(math.ceil(share * len(counted))).values[-1]
    return x >= lowest if mask is None else (x >= lowest) & mask


def reinforce_pp_advantages(
    rewards: Tensor, lengths: Tensor, gamma: float = 1.0, *, mask: Tensor | None = None
) -> Tensor:
    """Returns-to-go of KL-penalised token rewards, whitened over all tokens of the batch: REINFORCE++.

    Tokens that `mask` does not count do not enter mean and variance, and get 0.
    Shapes: `rewards` float [A] in units of reward, `lengths` int64 [N], `mask` bool [A] -> [A] without a unit, dtype of
    `rewards`. Raises ValueError where they do not fit.
    Source: Hu et al. 2025 (arXiv:2501.03262), section 3.
    """
    return whiten(returns_to_go(rewards, lengths, gamma), mask=mask)


def distillation_advantages(kl: Tensor, lengths: Tensor, coefficient: float, gamma: float = 0.0) -> Tensor:
    """A_t = -beta (kl_t + gamma kl_{t+1} + ...), with k1 = log p - log p_teacher as kl_t.

    Times the gradient of log p, its expectation under p is minus beta that of KL(p || p_teacher): with gamma = 0 of
    the next token, the states given; with gamma = 1 of the whole response.
    Shapes: `kl` float [A] in nats, `lengths` int64 [N], `coefficient` beta per nat -> [A] without a unit, same dtype.
    Raises ValueError where they do not fit.
    Source: Lu and Thinking Machines Lab 2025, "On-Policy Distillation" (gamma = 0); Gu et al. 2024 (MiniLLM,
    arXiv:2306.08543), section 2.2 (gamma = 1; gamma = 0 is its single-step part).
    """
    return returns_to_go(-coefficient * kl, lengths, gamma)
