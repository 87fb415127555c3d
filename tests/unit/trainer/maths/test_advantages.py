"""GAE and whitening against numbers by hand, a naive float64 sum, and each other under reordering."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths import advantages as module
from rlhf_trainer.maths.advantages import (
    generalized_advantages,
    highest,
    reinforce_pp_advantages,
    returns_to_go,
    whiten,
)
from rlhf_trainer.maths.groups import group_centered
from rlhf_trainer.maths.kl import token_rewards

real = st.floats(-5, 5, width=32)
answers = st.lists(st.lists(st.tuples(real, real), min_size=1, max_size=9), min_size=1, max_size=6)
discount = st.floats(0, 1)


def packed(
    batch: list, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rewards, values = torch.tensor([token for answer in batch for token in answer], dtype=dtype).unbind(1)
    return rewards, values, torch.tensor([len(answer) for answer in batch])


def naive_advantages(answer: list, gamma: float, gae_lambda: float) -> np.ndarray:
    """Eq. 16 as it stands: A_t = sum over l of (gamma lambda)^l delta_{t+l}, for one answer."""
    rewards, values = np.array(answer, dtype=np.float64).T
    length = len(rewards)
    delta = [
        rewards[t] + gamma * (values[t + 1] if t + 1 < length else 0.0) - values[t] for t in range(length)
    ]
    return np.array(
        [sum((gamma * gae_lambda) ** (u - t) * delta[u] for u in range(t, length)) for t in range(length)]
    )


def test_by_hand():
    advantages, returns = generalized_advantages(
        torch.tensor([0.0, 1.0, 2.0]),
        torch.tensor([0.5, 0.25, 1.0]),
        torch.tensor([2, 1]),
        gamma=0.9,
        gae_lambda=0.5,
    )
    # second answer: 2 - 1; first: 1 - 0.25 = 0.75, then 0 + 0.9*0.25 - 0.5 + 0.45*0.75 = 0.0625
    torch.testing.assert_close(advantages, torch.tensor([0.0625, 0.75, 1.0]))
    torch.testing.assert_close(returns, torch.tensor([0.5625, 1.0, 2.0]))


@given(answers, discount, discount)
def test_is_the_sum_of_equation_16(batch, gamma, gae_lambda):
    advantages, returns = generalized_advantages(*packed(batch), gamma, gae_lambda)
    expected = np.concatenate([naive_advantages(answer, gamma, gae_lambda) for answer in batch])
    np.testing.assert_allclose(advantages, expected, atol=1e-12)
    np.testing.assert_allclose(returns, expected + packed(batch)[1].numpy(), atol=1e-12)


@given(answers, discount, discount)
def test_float32_stays_near_float64(batch, gamma, gae_lambda):
    in32, _ = generalized_advantages(*packed(batch, torch.float32), gamma, gae_lambda)
    assert in32.dtype == torch.float32
    in64, _ = generalized_advantages(*packed(batch), gamma, gae_lambda)
    torch.testing.assert_close(in32.double(), in64, atol=1e-4, rtol=1e-5)


@given(answers, discount, discount, st.randoms(use_true_random=False))
def test_order_and_company_of_answers_change_nothing(batch, gamma, gae_lambda, random):
    """Bit for bit: an answer's advantages do not depend on what it is batched with."""
    order = random.sample(range(len(batch)), len(batch))
    together = generalized_advantages(*packed(batch), gamma, gae_lambda)[0].split([len(a) for a in batch])
    shuffled = generalized_advantages(*packed([batch[i] for i in order]), gamma, gae_lambda)[0]
    assert torch.equal(shuffled, torch.cat([together[i] for i in order]))
    alone = [generalized_advantages(*packed([answer]), gamma, gae_lambda)[0] for answer in batch]
    assert torch.equal(torch.cat(alone), torch.cat(together))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("gae_lambda", [0.0, 0.95, 1.0])
def test_long_responses_are_those_of_the_recursion_in_float64(gamma, gae_lambda, monkeypatch):
    """Of up to two levels of blocks, and in chunks; within 2e-6 of the summed size of what is added, and in float64 to
    its own precision; bit for bit alone as among others."""
    monkeypatch.setattr(module, "_ROWS", 20_000)
    draw = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 63, 64, 65, 700, 4096, 4097, 9000, 3, 128, 30_000])
    rewards, values = torch.randn(2, int(lengths.sum()), generator=draw)
    advantages, returns = generalized_advantages(rewards, values, lengths, gamma, gae_lambda)
    exact, _ = generalized_advantages(rewards.double(), values.double(), lengths, gamma, gae_lambda)
    parts = [part.split(lengths.tolist()) for part in (rewards, values, advantages, exact)]
    for r, v, mine, in64 in zip(*parts, strict=True):
        expected, size = recursion(r, v, gamma, gae_lambda)
        np.testing.assert_allclose(in64, expected, rtol=0, atol=1e-13 * size.max())
        assert (np.abs(mine.numpy() - expected) <= 2e-6 * size).all()
        alone, _ = generalized_advantages(r, v, torch.tensor([len(r)]), gamma, gae_lambda)
        assert torch.equal(alone, mine)
    torch.testing.assert_close(returns, advantages + values)


def recursion(rewards: torch.Tensor, values: torch.Tensor, gamma: float, gae_lambda: float) -> tuple:
    """A_t token by token in float64, and the same sum of absolute values."""
    v = np.append(values.double().numpy(), 0.0)
    deltas = rewards.double().numpy() + gamma * v[1:] - v[:-1]
    sums, size = np.zeros(len(deltas) + 1), np.ones(len(deltas) + 1)
    for t in reversed(range(len(deltas))):
        sums[t] = deltas[t] + gamma * gae_lambda * sums[t + 1]
        size[t] = abs(rewards[t]) + abs(v[t]) + abs(v[t + 1]) + gamma * gae_lambda * size[t + 1]
    return sums[:-1], size[:-1]


def test_without_discount_the_return_is_the_sum_of_rewards_to_come():
    kl, lengths = torch.tensor([0.1, 0.3, -0.2, 0.4]), torch.tensor([3, 1])
    rewards = token_rewards(kl, torch.tensor([2.0, -1.0]), lengths, kl_coefficient=0.5)
    _, returns = generalized_advantages(rewards, torch.randn(4), lengths, gamma=1.0, gae_lambda=1.0)
    torch.testing.assert_close(returns, torch.tensor([1.9, 1.95, 2.1, -1.2]))


def test_no_answers_at_all():
    nothing = torch.zeros(0)
    advantages, returns = generalized_advantages(
        nothing, nothing, torch.zeros(0, dtype=torch.int64), gamma=1.0, gae_lambda=1.0
    )
    assert advantages.shape == returns.shape == (0,)


def test_lengths_that_do_not_fit():
    with pytest.raises(ValueError, match="cannot hold 2 responses of 5 tokens"):
        generalized_advantages(
            torch.zeros(4), torch.zeros(4), torch.tensor([2, 3]), gamma=1.0, gae_lambda=1.0
        )


def test_whiten_by_hand():
    torch.testing.assert_close(
        whiten(torch.tensor([1.0, 3.0, 1.0, 3.0])), torch.tensor([-1.0, 1.0, -1.0, 1.0])
    )


@pytest.mark.parametrize("x", [[3.0], [2.0, 2.0, 2.0]])
def test_whiten_of_what_does_not_vary_is_zero(x):
    assert whiten(torch.tensor(x)).tolist() == [0.0] * len(x)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40), st.randoms(use_true_random=False))
def test_whitened_mean_and_deviation(x, random):
    if np.std(x) < 1e-2:
        x[0] += 1.0
    whitened = whiten(torch.tensor(x, dtype=torch.float64))
    assert float(whitened.mean()) == pytest.approx(0, abs=1e-9)
    assert float(whitened.std(correction=0)) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(whitened, (np.array(x) - np.mean(x)) / np.sqrt(np.var(x) + 1e-8), atol=1e-9)
    order = random.sample(range(len(x)), len(x))
    torch.testing.assert_close(
        whiten(torch.tensor([x[i] for i in order], dtype=torch.float64)), whitened[order]
    )


@given(answers, discount)
def test_returns_to_go_are_the_discounted_sums(batch, gamma):
    rewards, _, lengths = packed(batch)
    expected = []
    for response in batch:
        own = [reward for reward, _ in response]
        expected += [sum(gamma**k * r for k, r in enumerate(own[t:])) for t in range(len(own))]
    torch.testing.assert_close(
        returns_to_go(rewards, lengths, gamma), torch.tensor(expected, dtype=torch.float64)
    )


@given(st.lists(st.tuples(real, st.booleans()), min_size=1, max_size=30))
def test_masked_whitening_is_that_of_the_counted_tokens(rows):
    x, mask = torch.tensor(rows, dtype=torch.float64).unbind(1)
    mask = mask.bool()
    counted = np.array([value for value, counts in rows if counts])
    whitened = whiten(x, mask=mask)
    assert whitened[~mask].tolist() == [0.0] * int((~mask).sum())
    if len(counted):
        expected = (counted - counted.mean()) / np.sqrt(counted.var() + 1e-8)
        np.testing.assert_allclose(whitened[mask], expected, atol=1e-7)
    assert torch.equal(whiten(x, mask=torch.ones_like(mask)), whiten(x))


def naive_reinforce_pp(batch, beta, gamma, groups, masked) -> list[float]:
    """Token by token in plain Python: baseline, penalty, score at the end, returns-to-go, one mean and deviation."""
    scores = [score for score, _ in batch]
    if groups is not None:
        members = [[s for s, g in zip(scores, groups, strict=True) if g == group] for group in groups]
        scores = [s - sum(own) / len(own) for s, own in zip(scores, members, strict=True)]
    returns, counts = [], []
    for score, (_, tokens) in zip(scores, batch, strict=True):
        following, own = score, []
        for kl, counted in reversed(tokens):
            counted = counted or not masked
            penalty = beta * kl if counted else 0.0
            following = following - penalty if not own else gamma * following - penalty
            own.append((following, counted))
        returns += [g for g, _ in reversed(own)]
        counts += [c for _, c in reversed(own)]
    counted = [g for g, c in zip(returns, counts, strict=True) if c]
    mean = sum(counted) / max(1, len(counted))
    variance = sum((g - mean) ** 2 for g in counted) / max(1, len(counted))
    return [(g - mean) / (variance + 1e-8) ** 0.5 if c else 0.0 for g, c in zip(returns, counts, strict=True)]


scored = st.lists(
    st.tuples(real, st.lists(st.tuples(real, st.booleans()), min_size=1, max_size=6)), min_size=1, max_size=6
)


@given(scored, st.floats(0, 1), discount, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_reinforce_pp_is_that_of_a_loop_in_any_order(batch, beta, gamma, grouped, masked, random):
    groups = [random.randint(0, 2) for _ in batch] if grouped else None

    def advantages(order: list) -> torch.Tensor:
        kl, mask = torch.tensor([token for i in order for token in batch[i][1]], dtype=torch.float64).unbind(
            1
        )
        scores = torch.tensor([batch[i][0] for i in order], dtype=torch.float64)
        if groups:
            scores = group_centered(scores, torch.tensor([groups[i] for i in order]))
        lengths = torch.tensor([len(batch[i][1]) for i in order])
        counted = mask.bool() if masked else None
        rewards = token_rewards(kl, scores, lengths, beta, mask=counted)
        return reinforce_pp_advantages(rewards, lengths, gamma, mask=counted)

    together = advantages(list(range(len(batch))))
    expected = torch.tensor(naive_reinforce_pp(batch, beta, gamma, groups, masked), dtype=torch.float64)
    torch.testing.assert_close(together, expected, atol=1e-6, rtol=1e-6)
    order = random.sample(range(len(batch)), len(batch))
    pieces = together.split([len(tokens) for _, tokens in batch])
    torch.testing.assert_close(advantages(order), torch.cat([pieces[i] for i in order]), atol=1e-6, rtol=1e-6)


def test_reinforce_pp_without_a_penalty_gives_every_token_its_responses_score():
    lengths = torch.tensor([2, 2])
    rewards = token_rewards(torch.randn(4), torch.tensor([3.0, 1.0]), lengths, 0.0)
    advantages = reinforce_pp_advantages(rewards, lengths)
    torch.testing.assert_close(advantages, torch.tensor([1.0, 1.0, -1.0, -1.0]))


@pytest.mark.parametrize(
    ("share", "counted", "expected"),
    [
        (0.2, None, [False, True, False, False, False]),
        (0.21, None, [False, True, False, True, False]),
        (0.6, None, [True, True, False, True, True]),  # 1.0 twice: both equal the lowest
        (1.0, None, [True] * 5),
        (0.5, [True, False, True, False, False], [True, False, False, False, False]),
        (0.5, [False] * 5, [False] * 5),
    ],
)
def test_the_highest_share_of_the_values_that_count(share, counted, expected):
    x = torch.tensor([1.0, 3.0, 0.5, 2.0, 1.0])
    mask = None if counted is None else torch.tensor(counted)
    assert highest(x, share, mask).tolist() == expected
