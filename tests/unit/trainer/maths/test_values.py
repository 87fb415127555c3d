"""Running moments of returns against those of all returns at once, whose weights decay by batch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.values import DECAY, Moments, denormalize, normalize, update_moments

batches = st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=12), min_size=1, max_size=6)


def after(parts: list) -> Moments:
    moments = Moments()
    for part in parts:
        moments = update_moments(moments, torch.tensor(part, dtype=torch.float64))
    return moments


@given(batches)
def test_they_are_the_moments_of_all_returns_of_which_later_ones_weigh_more(parts):
    weights = [DECAY ** (len(parts) - 1 - i) for i, part in enumerate(parts) for _ in part]
    flat = np.array([x for part in parts for x in part])
    mean = np.average(flat, weights=weights)
    moments = after(parts)
    assert moments.weight == pytest.approx(sum(weights))
    assert moments.mean == pytest.approx(mean, abs=1e-9)
    assert moments.variance == pytest.approx(np.average((flat - mean) ** 2, weights=weights), abs=1e-8)


def test_a_reward_that_has_risen_is_followed():
    moments = after([[0.0, 1.0]] * 1000 + [[9.0, 10.0]] * 1000)
    assert moments.mean == pytest.approx(9.5, abs=0.01)
    assert moments.deviation() == pytest.approx(0.5, abs=0.01)


def test_a_large_mean_does_not_swallow_the_variance():
    returns = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64) + 1e9
    assert after([returns.tolist()] * 1000).variance == pytest.approx(1.25, rel=1e-6)


@given(batches, st.floats(-100, 100))
def test_normalized_and_back(parts, value):
    moments = after(parts)
    x = torch.tensor([value, *parts[0]], dtype=torch.float64)
    torch.testing.assert_close(denormalize(normalize(x, moments), moments), x, atol=1e-9, rtol=1e-9)


def test_normalized_returns_have_mean_0_and_deviation_1():
    returns = torch.tensor([3.0, 5.0, 10.0, -2.0])
    normalized = normalize(returns, update_moments(Moments(), returns))
    assert normalized.dtype == torch.float32
    assert float(normalized.mean()) == pytest.approx(0, abs=1e-6)
    assert float(normalized.std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_before_the_first_returns_nothing_changes():
    x = torch.tensor([0.1, -7.0])
    assert torch.equal(normalize(x, Moments()), x)
    assert torch.equal(denormalize(x, Moments()), x)


def test_returns_that_do_not_vary_stay_finite():
    moments = update_moments(Moments(), torch.full((3,), 2.0))
    assert (moments.mean, moments.variance) == (2.0, 0.0)
    assert normalize(torch.tensor([2.0]), moments).tolist() == [0.0]
    assert math.isfinite(float(normalize(torch.tensor([3.0]), moments)))


def test_only_counted_tokens_enter():
    returns = torch.tensor([1.0, 500.0, 3.0])
    counted = torch.tensor([True, False, True])
    assert update_moments(Moments(), returns, mask=counted) == update_moments(Moments(), returns[counted])
    known = Moments(weight=3.0, mean=1.0, variance=2.0)
    assert update_moments(known, returns, mask=torch.zeros(3, dtype=torch.bool)) == known
    assert update_moments(known, torch.zeros(0)) == known
