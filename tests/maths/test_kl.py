"""KL estimators and token rewards against numbers by hand and naive float64 loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.kl import token_kl, token_kl_k3, token_rewards


def test_estimators_by_hand():
    logprobs = torch.log(torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64))
    reference = torch.log(torch.tensor([0.25, 0.5, 0.1], dtype=torch.float64))
    torch.testing.assert_close(
        token_kl(logprobs, reference), torch.tensor([math.log(2), -math.log(2), 0.0], dtype=torch.float64)
    )
    torch.testing.assert_close(
        token_kl_k3(logprobs, reference),
        torch.tensor([-0.5 + math.log(2), 1 - math.log(2), 0.0], dtype=torch.float64),
    )


def test_both_estimators_have_the_divergence_as_expectation():
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    q = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    divergence = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    for estimate in (token_kl, token_kl_k3):
        assert float((p * estimate(p.log(), q.log())).sum()) == pytest.approx(divergence, rel=1e-12)


@given(st.lists(st.tuples(st.floats(-20, 0), st.floats(-20, 0)), min_size=1, max_size=20))
def test_k3_is_never_negative(pairs):
    logprobs, reference = torch.tensor(pairs).unbind(1)
    assert bool((token_kl_k3(logprobs, reference) >= -1e-6).all())


def test_small_differences_survive_float32():
    difference = token_kl_k3(torch.tensor([-1.0]), torch.tensor([-1.0 + 1e-3]))
    # (e^x - 1 - x) = x^2/2 + x^3/6; a plain exp would leave one digit of it
    assert float(difference) == pytest.approx(5.0017e-7, rel=2e-3)


def test_rewards_by_hand():
    rewards = token_rewards(
        torch.tensor([0.1, -0.2, 0.3]), torch.tensor([1.0, -2.0]), torch.tensor([2, 1]), kl_coefficient=0.5
    )
    torch.testing.assert_close(rewards, torch.tensor([-0.05, 1.1, -2.15]))


def test_rewards_leave_their_inputs_alone():
    kl = torch.tensor([0.1, 0.2])
    token_rewards(kl, torch.tensor([1.0]), torch.tensor([2]), kl_coefficient=-1.0)
    torch.testing.assert_close(kl, torch.tensor([0.1, 0.2]))


@pytest.mark.parametrize(
    ("tokens", "scores", "lengths", "message"),
    [
        (3, 2, [2, 2], "shape \\(3,\\) cannot hold 2 answers of 4 tokens"),
        (2, 2, [2, 0], "at least one token"),
        (3, 1, [2, 1], "2 answers need as many scores"),
    ],
)
def test_shapes_that_do_not_fit(tokens, scores, lengths, message):
    with pytest.raises(ValueError, match=message):
        token_rewards(torch.zeros(tokens), torch.zeros(scores), torch.tensor(lengths), kl_coefficient=0.1)
