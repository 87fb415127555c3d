"""Covariances of tokens, and the tokens that are chosen by them, against plain Python."""

import math

import pytest
import torch

from rlhf_trainer.maths.covariance import HIGH, LOW, draw_covariant, token_covariances


def tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    logprobs, advantages = (2 * torch.randn(60, generator=draw, dtype=torch.float64) for _ in range(2))
    return logprobs, advantages, torch.rand(60, generator=draw) < 0.7


@pytest.mark.parametrize("masked", [False, True])
def test_a_covariance_is_the_product_of_both_deviations(masked):
    logprobs, advantages, mask = tokens()
    counted = mask.tolist() if masked else [True] * 60
    means = [
        sum(x for x, c in zip(values.tolist(), counted, strict=True) if c) / sum(counted)
        for values in (logprobs, advantages)
    ]
    expected = [
        (p - means[0]) * (a - means[1]) for p, a in zip(logprobs.tolist(), advantages.tolist(), strict=True)
    ]
    covariances = token_covariances(logprobs, advantages, mask if masked else None)
    assert covariances.tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("share", [0.02, 0.1, 1.0])
def test_tokens_are_drawn_between_the_bounds_by_the_seed(share):
    logprobs, advantages, mask = tokens()
    covariances = token_covariances(logprobs, advantages, mask)
    between = [LOW <= c <= HIGH and m for c, m in zip(covariances.tolist(), mask.tolist(), strict=True)]
    drawn = draw_covariant(covariances, share, 1, mask)
    assert int(drawn.sum()) == min(sum(between), math.ceil(share * int(mask.sum())))
    assert all(b for b, d in zip(between, drawn.tolist(), strict=True) if d)
    assert torch.equal(drawn, draw_covariant(covariances, share, 1, mask))
    others = [draw_covariant(covariances, share, seed, mask) for seed in range(2, 12)]
    assert share == 1.0 or not all(torch.equal(drawn, other) for other in others)


def test_without_tokens_nothing_is_chosen():
    nothing = torch.zeros(3, dtype=torch.bool)
    covariances = token_covariances(torch.ones(3), torch.ones(3), nothing)
    assert not draw_covariant(covariances, 1.0, 0, nothing).any()
