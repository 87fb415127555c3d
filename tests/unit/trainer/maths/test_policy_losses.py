"""Clip-higher, dual clip and GSPO against plain Python loops, autograd of the papers' own forms, and today's PPO."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.losses import (
    clipped_surrogate,
    outside_clip,
    ratio,
    sequence_ratio,
    token_weights,
)

real = st.floats(-4, 4)
nats = st.floats(-3, 0)
token = st.tuples(nats, nats, real)
clip = st.floats(0.01, 0.9)
sequences = st.lists(
    st.lists(st.tuples(nats, nats, st.booleans()), min_size=1, max_size=8), min_size=1, max_size=5
)


def columns(rows: list, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    return torch.tensor(rows, dtype=dtype).unbind(1)


def packed(batch: list) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    logprobs, old, mask = columns([token for sequence in batch for token in sequence])
    return logprobs, old, torch.tensor([len(sequence) for sequence in batch]), mask.bool()


def test_surrogate_by_hand():
    r = torch.tensor([1.5, 1.5, 0.5, 0.5, 5.0, 5.0])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, -2.0, 2.0])
    torch.testing.assert_close(
        clipped_surrogate(r, advantages, clip_low=0.2, clip_high=0.3),
        torch.tensor([-1.3, 1.5, -0.5, 0.8, 10.0, -2.6]),
    )
    # of the dual clip at 3, only a ratio of 5 with a negative advantage knows
    torch.testing.assert_close(
        clipped_surrogate(r, advantages, clip_low=0.2, clip_high=0.3, dual_clip=3.0),
        torch.tensor([-1.3, 1.5, -0.5, 0.8, 6.0, -2.6]),
    )
    assert outside_clip(torch.tensor([1.25, 1.35, 0.85, 0.75]), 0.2, 0.3).tolist() == [0.0, 1.0, 0.0, 1.0]


@given(st.lists(token, min_size=1, max_size=30), clip, clip, st.none() | st.floats(1.01, 5))
def test_surrogate_is_the_papers_case_by_case(rows, low, high, dual):
    expected, outside = [], []
    for logprob, old, advantage in rows:
        r = math.exp(logprob - old)
        objective = min(r * advantage, min(max(r, 1 - low), 1 + high) * advantage)
        if dual is not None and advantage < 0:
            objective = max(objective, dual * advantage)
        expected.append(-objective)
        outside.append(r - 1 > high or 1 - r > low)
    logprobs, old, advantages = columns(rows)
    loss = clipped_surrogate(ratio(logprobs, old), advantages, low, high, dual)
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))
    assert outside_clip(ratio(logprobs, old), low, high).tolist() == outside


@given(st.lists(token, min_size=1, max_size=30), clip)
def test_one_clip_on_both_sides_is_ppo_bit_for_bit(rows, c):
    logprobs, old, advantages = columns(rows, torch.float32)
    r = torch.exp(logprobs - old)
    ppo = -torch.minimum(r * advantages, r.clamp(1 - c, 1 + c) * advantages)
    assert torch.equal(clipped_surrogate(ratio(logprobs, old), advantages, c, c), ppo)
    fraction = ((r - 1).abs() > c).float()
    assert torch.equal(outside_clip(ratio(logprobs, old), c, c), fraction)


def test_dual_clip_stops_the_gradient_of_what_became_far_more_likely():
    old = torch.full((3,), -5.0)
    logprobs = (old + torch.log(torch.tensor([2.0, 4.0, 4.0]))).requires_grad_()
    advantages = torch.tensor([-1.0, -1.0, 1.0])
    clipped_surrogate(ratio(logprobs, old), advantages, 0.2, 0.2, dual_clip=3.0).sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([2.0, 0.0, 0.0]))


def test_dual_clip_that_would_bite_at_ratio_1():
    with pytest.raises(ValueError, match=r"above 1, such as 3; got 1\.0"):
        clipped_surrogate(torch.ones(1), torch.ones(1), 0.2, 0.2, dual_clip=1.0)


@given(sequences, st.booleans())
def test_sequence_ratio_is_equation_7_at_every_token(batch, masked):
    logprobs, old, lengths, mask = packed(batch)
    expected = []
    for sequence in batch:
        counted = [p - q for p, q, counts in sequence if counts or not masked]
        s = math.exp(sum(counted) / len(counted)) if counted else 1.0
        expected += [s] * len(sequence)
    s = sequence_ratio(logprobs, old, lengths, mask if masked else None)
    torch.testing.assert_close(s, torch.tensor(expected, dtype=torch.float64))


@given(sequences, st.lists(real, min_size=5, max_size=5), st.booleans())
def test_token_form_has_value_and_gradient_of_the_sequence_form(batch, advantages, masked):
    """Eq. 5 as it stands, one s_i for a sequence, differentiated by autograd."""
    logprobs, old, lengths, mask = packed(batch)
    counted = mask if masked else torch.ones_like(mask)
    whole = logprobs.clone().requires_grad_()
    terms = []
    splits = (t.split(lengths.tolist()) for t in (whole, old, counted))
    for p, q, counts, advantage in zip(*splits, advantages, strict=False):
        if counts.any():
            s = ((p - q)[counts].sum() / counts.sum()).exp()
            terms.append(-torch.minimum(s * advantage, s.clamp(0.9, 1.2) * advantage))
    expected = torch.stack(terms).mean() if terms else (0 * whole).sum()
    expected.backward()

    tokens = logprobs.clone().requires_grad_()
    mask = mask if masked else None
    s = sequence_ratio(tokens, old, lengths, mask)
    per_token = torch.repeat_interleave(torch.tensor(advantages[: len(batch)], dtype=torch.float64), lengths)
    weights = token_weights(lengths, "sequence", mask)
    loss = (weights * clipped_surrogate(s, per_token, 0.1, 0.2)).sum()
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tokens.grad, whole.grad, atol=1e-6, rtol=1e-6)


@given(sequences, st.randoms(use_true_random=False))
def test_sequence_ratio_does_not_depend_on_the_micro_batch(batch, random):
    """Bit for bit, in float32, for whole sequences in any order and any cut."""
    order = random.sample(range(len(batch)), len(batch))
    together = sequence_ratio(*packed(batch)).split([len(sequence) for sequence in batch])
    alone = [sequence_ratio(*packed([batch[i]])) for i in order]
    assert torch.equal(torch.cat(alone), torch.cat([together[i] for i in order]))


def test_small_sequence_ratios_survive_float32():
    """GSPO clips at 3e-4: a mean log-ratio of 1e-4 over 20,000 tokens has to keep its digits."""
    old = torch.linspace(-8, -0.1, 20_000)
    s = sequence_ratio(old + 1e-4, old, torch.tensor([20_000]))
    exact = math.exp(float(((old + 1e-4) - old).double().mean()))
    assert float(s[0]) == pytest.approx(exact, abs=1.2e-7)


def test_on_policy_the_gradient_is_the_plain_one():
    old = torch.tensor([-1.0, -2.0, -0.5])
    logprobs = old.clone().requires_grad_()
    assert torch.equal(ratio(logprobs, old), torch.ones(3))
    s = sequence_ratio(logprobs, old, torch.tensor([2, 1]))
    clipped_surrogate(s, torch.tensor([3.0, 3.0, -1.0]), 3e-4, 4e-4).sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor([-3.0, -3.0, 1.0]))
