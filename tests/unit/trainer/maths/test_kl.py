"""KL estimators and token rewards against numbers by hand and naive float64 loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.kl import (
    adaptive_kl_coefficient,
    kl_estimate,
    token_kl,
    token_kl_k3,
    token_rewards,
)


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
        (3, 2, [2, 2], "shape \\(3,\\) cannot hold 2 responses of 4 tokens"),
        (2, 2, [2, 0], "at least one token"),
        (3, 1, [2, 1], "2 responses need as many scores"),
    ],
)
def test_shapes_that_do_not_fit(tokens, scores, lengths, message):
    with pytest.raises(ValueError, match=message):
        token_rewards(torch.zeros(tokens), torch.zeros(scores), torch.tensor(lengths), kl_coefficient=0.1)


real = st.floats(-5, 5)
logits = st.lists(st.floats(-3, 3), min_size=4, max_size=4)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", -0.5), ("k2", 0.125), ("k3", math.e**0.5 - 1.5)])
def test_estimators_by_name(estimator, expected):
    estimate = kl_estimate(torch.tensor([-1.5]), torch.tensor([-1.0]), estimator)
    torch.testing.assert_close(estimate, torch.tensor([expected]))


def test_unknown_estimator():
    with pytest.raises(ValueError, match="'k1', 'k2' or 'k3'; got 'abs'"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "abs")


@given(logits, logits, st.sampled_from(["k1", "k2", "k3"]))
def test_expected_gradient_of_a_loss(policy, reference, estimator):
    """Exactly, over all four tokens, against autograd of the divergence itself: k1 has none, k2 that of KL(p || q),
    k3 that of KL(q || p)."""
    q = torch.tensor(reference, dtype=torch.float64).log_softmax(0)
    z = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    p = z.log_softmax(0)
    (p.exp().detach() * kl_estimate(p, q, estimator)).sum().backward()

    exact = torch.tensor(policy, dtype=torch.float64, requires_grad=True)
    p = exact.log_softmax(0)
    divergence = {
        "k1": 0 * p.sum(),
        "k2": (p.exp() * (p - q)).sum(),
        "k3": (q.exp() * (q - p)).sum(),
    }[estimator]
    divergence.backward()
    torch.testing.assert_close(z.grad, exact.grad, atol=1e-10, rtol=1e-8)


def in_reward(p: torch.Tensor, q: torch.Tensor, estimator: str) -> torch.Tensor:
    """Expected gradient in the logits of p of a penalty that is part of the reward: by its log-derivative."""
    z = p.log().requires_grad_()
    logprobs = z.log_softmax(0)
    (p * kl_estimate(logprobs.detach(), q.log(), estimator) * logprobs).sum().backward()
    return z.grad


def of_divergence(p: torch.Tensor, q: torch.Tensor, *, reverse: bool) -> torch.Tensor:
    z = p.log().requires_grad_()
    logprobs = z.log_softmax(0)
    difference = logprobs - q.log()
    (-(q * difference) if reverse else logprobs.exp() * difference).sum().backward()
    return z.grad


@given(logits, logits)
def test_expected_gradients_of_a_reward(policy, reference):
    p, q = (torch.tensor(row_logits, dtype=torch.float64).softmax(0) for row_logits in (policy, reference))
    forward, reverse = of_divergence(p, q, reverse=False), of_divergence(p, q, reverse=True)
    torch.testing.assert_close(in_reward(p, q, "k1"), forward, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(in_reward(p, q, "k3"), forward - reverse, atol=1e-10, rtol=1e-8)


def test_near_the_reference_k1_alone_holds_a_policy_back_by_its_reward():
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    p = (q.log() + 1e-3 * torch.tensor([1.0, -1.0, 2.0, 0.0], dtype=torch.float64)).softmax(0)
    k1, k2, k3 = (float(in_reward(p, q, estimator).norm()) for estimator in ("k1", "k2", "k3"))
    assert max(k2, k3) < 2e-3 * k1


batches = st.lists(
    st.tuples(real, st.lists(st.tuples(real, real, st.booleans()), min_size=1, max_size=6)),
    min_size=1,
    max_size=5,
)


@given(batches, st.floats(0, 1), st.booleans(), st.booleans())
def test_rewards_of_tokens_and_masks_are_those_of_a_loop(batch, beta, fine_grained, masked):
    expected = []
    for score, tokens in batch:
        rewards = [
            (reward if fine_grained else 0.0) - (beta * kl if counts or not masked else 0.0)
            for kl, reward, counts in tokens
        ]
        rewards[-1] += score
        expected += rewards
    kl, own, mask = torch.tensor([t for _, tokens in batch for t in tokens], dtype=torch.float64).unbind(1)
    rewards = token_rewards(
        kl,
        torch.tensor([score for score, _ in batch], dtype=torch.float64),
        torch.tensor([len(tokens) for _, tokens in batch]),
        beta,
        fine_grained=own if fine_grained else None,
        mask=mask.bool() if masked else None,
    )
    torch.testing.assert_close(rewards, torch.tensor(expected, dtype=torch.float64))


def test_token_rewards_that_do_not_fit():
    kl, scores, lengths = torch.zeros(3), torch.zeros(2), torch.tensor([1, 2])
    with pytest.raises(ValueError, match="cannot hold 2 responses of 3 tokens"):
        token_rewards(kl, scores, lengths, 0.1, fine_grained=torch.zeros(2))
    with pytest.raises(ValueError, match="cannot hold 2 responses of 3 tokens"):
        token_rewards(kl, scores, lengths, 0.1, mask=torch.ones(2, dtype=torch.bool))


def test_adaptive_coefficient_by_hand():
    settings = {"target": 6.0, "horizon": 1000.0, "n": 100}
    assert adaptive_kl_coefficient(0.1, 6.0, **settings) == 0.1
    assert adaptive_kl_coefficient(0.1, 6.6, **settings) == pytest.approx(0.1 * 1.01)
    assert adaptive_kl_coefficient(0.1, 60.0, **settings) == pytest.approx(0.1 * 1.02)
    assert adaptive_kl_coefficient(0.1, -3.0, **settings) == pytest.approx(0.1 * 0.98)


def test_adaptive_coefficient_moves_by_a_fifth_over_its_horizon():
    coefficient = 1.0
    for _ in range(100):
        coefficient = adaptive_kl_coefficient(coefficient, 20.0, target=6.0, horizon=10_000, n=100)
    assert coefficient == pytest.approx(math.exp(0.2), rel=1e-3)


@given(st.floats(1e-4, 10), st.floats(-50, 50), st.floats(0.1, 20), st.integers(1, 10_000))
def test_adaptive_coefficient_follows_the_error_and_stays_positive(coefficient, observed, target, n):
    after = adaptive_kl_coefficient(coefficient, observed, target, horizon=1000, n=n)
    assert after > 0
    assert (after > coefficient) == (observed > target) or math.isclose(after, coefficient, rel_tol=1e-12)


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 10), (6.0, 0)])
def test_controller_without_a_target_or_horizon(target, horizon):
    with pytest.raises(ValueError, match="must be above 0; got"):
        adaptive_kl_coefficient(0.1, 1.0, target, horizon, 1)
