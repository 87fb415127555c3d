"""Entropy of rows of log-probabilities against -sum p log p in plain Python, and its gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.entropy import entropy as of_logprobs

row = st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5)


def probabilities(logits: list[float]) -> list[float]:
    weights = [math.exp(z - max(logits)) for z in logits]
    return [w / sum(weights) for w in weights]


def entropy(logits: torch.Tensor) -> torch.Tensor:
    return of_logprobs(torch.log_softmax(logits, -1))


def test_by_hand():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -90.0, 0.0, -90.0], [500.0, 400.0, 400.0, 400.0]])
    torch.testing.assert_close(entropy(logits), torch.tensor([math.log(4), math.log(2), 0.0]))


@given(st.lists(row, min_size=1, max_size=6), st.floats(-1000, 1000, width=32))
def test_is_the_sum_of_p_log_p_wherever_the_logits_lie(rows, shift):
    expected = [-sum(p * math.log(p) for p in probabilities(z) if p) for z in rows]
    at_zero = entropy(torch.tensor(rows))
    assert at_zero.dtype == torch.float32
    torch.testing.assert_close(at_zero, torch.tensor(expected), atol=2e-6, rtol=1e-5)
    # a shift of 1000 rounds the logits themselves at 6e-5
    torch.testing.assert_close(entropy(torch.tensor(rows) + shift), at_zero, atol=2e-3, rtol=1e-4)


@given(row)
def test_gradient_is_minus_p_times_log_p_plus_entropy(logits):
    p = probabilities(logits)
    h = -sum(q * math.log(q) for q in p if q)
    z = torch.tensor([logits], requires_grad=True)
    entropy(z).sum().backward()
    expected = [-q * (math.log(q) + h) if q else 0.0 for q in p]
    torch.testing.assert_close(z.grad[0], torch.tensor(expected), atol=1e-5, rtol=1e-4)


@given(st.integers(1, 12))
def test_chunks_of_rows_change_nothing(size):
    logits = torch.randn(12, 50, generator=torch.Generator().manual_seed(1))
    parts = torch.cat([entropy(chunk) for chunk in logits.split(size)])
    assert parts.tolist() == pytest.approx(entropy(logits).tolist(), abs=1e-6)
