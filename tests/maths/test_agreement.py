"""How far two sets of log-probabilities are apart, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.agreement import mean_abs_difference, mean_ratio, ratio_outside


def test_mean_abs_difference_by_hand():
    assert float(mean_abs_difference(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]))) == 0.75


def test_ratio_outside_by_hand():
    sampled = torch.full((5,), -1.0)
    logprobs = sampled + torch.log(torch.tensor([1.0, 1.05, 1.15, 0.95, 0.85]))
    assert float(ratio_outside(logprobs, sampled)) == pytest.approx(0.4)
    assert float(ratio_outside(logprobs, sampled, low=0.8, high=1.2)) == 0


def test_what_is_not_a_number_is_outside():
    impossible = torch.tensor([-1.0, -math.inf, math.nan, -1.0])
    assert float(ratio_outside(impossible, torch.tensor([-1.0, -math.inf, -1.0, -math.inf]))) == 0.75


def test_mean_ratio_by_hand():
    old = torch.full((3,), -5.0)
    logprobs = old + torch.log(torch.tensor([1.0, 4.0, 16.0]))
    assert float(mean_ratio(logprobs, old)) == pytest.approx(7, rel=1e-5)
    assert float(mean_ratio(logprobs, old, torch.tensor([True, True, False]))) == pytest.approx(2.5, rel=1e-5)
    assert float(mean_ratio(old, old)) == 1
    assert float(mean_ratio(logprobs, old, torch.zeros(3, dtype=torch.bool))) == 1


@given(st.lists(st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.booleans()), min_size=1, max_size=20))
def test_mean_ratio_is_the_mean_over_counted_tokens(rows):
    counted = [math.exp(p - q) for p, q, counts in rows if counts]
    logprobs, old, mask = torch.tensor(rows, dtype=torch.float64).unbind(1)
    expected = sum(counted) / len(counted) if counted else 1
    assert float(mean_ratio(logprobs, old, mask.bool())) == pytest.approx(expected, rel=1e-9)
