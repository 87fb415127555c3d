"""Importance weights against sums written out, response by response."""

import math

import pytest
import torch

from rlhf_trainer.maths.importance import effective_share, importance_weights

LENGTHS = [2, 1, 3]
NOW = [[-1.0, -2.0], [-0.5], [-1.0, -1.0, -3.0]]
SAMPLED = [[-1.5, -1.0], [-2.5], [-1.0, -1.2, -2.0]]


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("mask", [None, 2.0, 5.0])
def test_weights_are_truncated_ratios_and_those_outside_the_mask_are_left_out(level, mask):
    weights = importance_weights(
        flat(NOW), flat(SAMPLED), torch.tensor(LENGTHS), level, cap=1.5, mask=mask
    ).tolist()
    expected = []
    for now, sampled in zip(NOW, SAMPLED, strict=True):
        ratios = [math.exp(a - b) for a, b in zip(now, sampled, strict=True)]
        if level == "sequence":
            ratios = [math.prod(ratios)] * len(ratios)
        if level == "geometric":
            ratios = [math.prod(ratios) ** (1 / len(ratios))] * len(ratios)
        left_out = [mask is not None and not 1 / mask <= ratio <= mask for ratio in ratios]
        expected += [0.0 if out else min(ratio, 1.5) for ratio, out in zip(ratios, left_out, strict=True)]
    assert weights == pytest.approx(expected)


def test_the_spread_of_the_geometric_mean_does_not_grow_with_the_length():
    """Of engines whose log-probabilities differ by noise, a mask keeps short and long responses alike."""
    generator, lengths = torch.Generator().manual_seed(0), torch.tensor([10, 5000] * 20)
    now = torch.zeros(int(lengths.sum()), dtype=torch.float64)
    sampled = 0.05 * torch.randn(len(now), generator=generator, dtype=torch.float64)
    shares = {}
    for level in ("sequence", "geometric"):
        weights = importance_weights(now, sampled, lengths, level, cap=2.0, mask=1.25)
        heads = torch.stack([row[0] for row in weights.split(lengths.tolist())]) > 0
        shares[level] = float(heads[0::2].double().mean()), float(heads[1::2].double().mean())
    assert shares["geometric"] == (1.0, 1.0)
    assert shares["sequence"][1] < 0.3 < shares["sequence"][0]


def test_the_effective_share_is_one_for_equal_weights_and_less_for_others():
    assert effective_share(torch.full((7,), 0.3)) == pytest.approx(1.0)
    assert effective_share(torch.tensor([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert effective_share(torch.zeros(3)) == 0
