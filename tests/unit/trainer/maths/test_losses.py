"""Losses and weights against numbers by hand and naive float64 loops over sequences and tokens."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.losses import (
    clipped_surrogate,
    clipped_value_loss,
    outside_clip,
    pairwise_loss,
    ratio,
    token_weights,
)

nats = st.floats(-3, 0)
real = st.floats(-4, 4)
lengths_of_batch = st.lists(st.integers(1, 12), min_size=1, max_size=8)
aggregation = st.sampled_from(["token", "sequence"])


def columns(rows: list) -> tuple[torch.Tensor, ...]:
    return torch.tensor(rows, dtype=torch.float64).unbind(1)


def test_policy_loss_by_hand():
    # ratio 2, clipped to 1.2: a good token's gain is cut, a bad one's loss is not; ratio 0.5, to 0.8: reverse
    logprobs = torch.log(torch.tensor([0.4, 0.4, 0.1, 0.1]))
    old = torch.log(torch.tensor([0.2, 0.2, 0.2, 0.2]))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    r = ratio(logprobs, old)
    torch.testing.assert_close(r, torch.tensor([2.0, 2.0, 0.5, 0.5]))
    torch.testing.assert_close(
        clipped_surrogate(r, advantages, 0.2, 0.2), torch.tensor([-1.2, 2.0, -0.5, 0.8])
    )


@given(st.lists(st.tuples(nats, nats, real), min_size=1, max_size=30), st.floats(0.01, 0.9))
def test_policy_loss_is_equation_7(rows, clip_ratio):
    expected = []
    for logprob, old, advantage in rows:
        r = math.exp(logprob - old)
        expected.append(-min(r * advantage, min(max(r, 1 - clip_ratio), 1 + clip_ratio) * advantage))
    logprobs, old_logprobs, advantages = columns(rows)
    loss = clipped_surrogate(ratio(logprobs, old_logprobs), advantages, clip_ratio, clip_ratio)
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


def test_policy_gradient_stops_where_the_clip_bites_and_is_the_plain_one_at_ratio_1():
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    logprobs = (old + torch.tensor([0.0, 0.5, 0.5, -0.5])).requires_grad_()
    advantages = torch.tensor([3.0, 1.0, -1.0, -1.0])
    clipped_surrogate(ratio(logprobs, old), advantages, 0.2, 0.2).sum().backward()
    # d(-rA)/dlogp = -rA: whole at ratio 1, none for a good token too likely already or a bad one too unlikely
    torch.testing.assert_close(logprobs.grad, torch.tensor([-3.0, 0.0, math.exp(0.5), 0.0]))


def test_clip_fraction_by_hand():
    logprobs, old = torch.log(torch.tensor([1.3, 1.1, 0.7, 0.9])), torch.zeros(4)
    assert outside_clip(ratio(logprobs, old), 0.2, 0.2).tolist() == [1.0, 0.0, 1.0, 0.0]


def test_value_loss_by_hand():
    values, old, returns = torch.tensor([2.0, 0.1, 2.0]), torch.zeros(3), torch.tensor([1.0, 1.0, 3.0])
    # clipped to 0.5: errors max(1, .25), max(.81, .81), max(1, 6.25)
    torch.testing.assert_close(
        clipped_value_loss(values, old, returns, clip_value=0.5), torch.tensor([0.5, 0.405, 3.125])
    )
    torch.testing.assert_close(
        clipped_value_loss(values, old, returns, clip_value=None), torch.tensor([0.5, 0.405, 0.5])
    )


@given(st.lists(st.tuples(real, real, real), min_size=1, max_size=30), st.floats(0.01, 3))
def test_value_loss_is_the_larger_of_both_errors(rows, clip_value):
    expected = []
    for value, old, target in rows:
        near = min(max(value, old - clip_value), old + clip_value)
        expected.append(max((value - target) ** 2, (near - target) ** 2) / 2)
    loss = clipped_value_loss(*columns(rows), clip_value)
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


def test_weights_by_hand():
    lengths = torch.tensor([1, 3])
    torch.testing.assert_close(token_weights(lengths, "token"), torch.tensor([0.25] * 4))
    torch.testing.assert_close(token_weights(lengths, "sequence"), torch.tensor([1 / 2, 1 / 6, 1 / 6, 1 / 6]))


@given(lengths_of_batch, aggregation, st.randoms(use_true_random=False))
def test_weighted_sum_is_the_mean_it_names_however_the_batch_is_ordered_or_cut(lengths, aggregation, random):
    losses = [[random.uniform(-2, 2) for _ in range(length)] for length in lengths]
    if aggregation == "token":
        flat = [x for answer in losses for x in answer]
        expected = sum(flat) / len(flat)
    else:
        expected = sum(sum(answer) / len(answer) for answer in losses) / len(losses)

    order = random.sample(range(len(lengths)), len(lengths))
    weights = token_weights(torch.tensor([lengths[i] for i in order]), aggregation)
    packed = torch.tensor([x for i in order for x in losses[i]])
    assert weights.dtype == torch.float32
    assert float(weights.sum()) == pytest.approx(1, abs=1e-6)
    assert float((weights * packed).sum()) == pytest.approx(expected, abs=1e-5)

    cut = sum(lengths[i] for i in order[: random.randint(0, len(order))])
    parts = (weights[:cut] * packed[:cut]).sum() + (weights[cut:] * packed[cut:]).sum()
    assert float(parts) == pytest.approx(expected, abs=1e-5)


def test_unknown_aggregation():
    with pytest.raises(ValueError, match="'token', 'sequence' or 'constant'; got 'mean'"):
        token_weights(torch.tensor([1]), "mean")


def test_pairwise_loss_by_hand():
    loss = pairwise_loss(torch.tensor([0.0, math.log(3), -200.0, 200.0]), torch.zeros(4))
    torch.testing.assert_close(loss, torch.tensor([math.log(2), math.log(4 / 3), 200.0, 0.0]))


@given(st.lists(st.tuples(real, real), min_size=1, max_size=20), real)
def test_pairwise_loss_is_bradley_terry_and_knows_only_differences(rows, shift):
    chosen, rejected = columns(rows)
    expected = [-math.log(math.exp(c) / (math.exp(c) + math.exp(r))) for c, r in rows]
    torch.testing.assert_close(pairwise_loss(chosen, rejected), torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(
        pairwise_loss(chosen + shift, rejected + shift), pairwise_loss(chosen, rejected)
    )
