"""DPO and IPO against the papers' formulas in plain Python, their gradients, and each other."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.losses import pairwise_loss
from rlhf_trainer.maths.preference import dpo_loss, implicit_rewards, ipo_loss, odds_ratio_loss

nats = st.floats(-30, 0)
pairs = st.lists(st.tuples(nats, nats, nats, nats), min_size=1, max_size=12)
beta = st.floats(0.05, 1)


def margins(batch: list, beta: float) -> torch.Tensor:
    chosen, rejected, reference_chosen, reference_rejected = torch.tensor(batch, dtype=torch.float64).unbind(
        1
    )
    return implicit_rewards(chosen, reference_chosen, beta) - implicit_rewards(
        rejected, reference_rejected, beta
    )


def test_by_hand():
    rewards = implicit_rewards(torch.tensor([-2.0, -5.0]), torch.tensor([-3.0, -3.0]), beta=0.5)
    assert rewards.tolist() == [0.5, -1.0]
    torch.testing.assert_close(
        dpo_loss(torch.tensor([0.0, math.log(3), -200.0])),
        torch.tensor([math.log(2), math.log(4 / 3), 200.0]),
    )
    # sigmoid(log 3) = 3/4: a tenth of the labels is wrong
    torch.testing.assert_close(
        dpo_loss(torch.tensor([math.log(3)]), label_smoothing=0.1),
        torch.tensor([-0.9 * math.log(3 / 4) - 0.1 * math.log(1 / 4)]),
    )
    torch.testing.assert_close(
        ipo_loss(torch.tensor([0.5, 0.0, 1.0]), beta=0.1), torch.tensor([0.0, 25.0, 25.0])
    )


@given(pairs, beta, st.floats(0, 0.49))
def test_dpo_is_equation_7(batch, beta, smoothing):
    expected = []
    for chosen, rejected, reference_chosen, reference_rejected in batch:
        h = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
        right, wrong = math.log1p(math.exp(-h)), math.log1p(math.exp(h))
        expected.append((1 - smoothing) * right + smoothing * wrong)
    loss = dpo_loss(margins(batch, beta), smoothing)
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


@given(pairs, beta)
def test_dpo_is_the_pairwise_loss_of_implicit_rewards(batch, beta):
    chosen, rejected, reference_chosen, reference_rejected = torch.tensor(batch, dtype=torch.float64).unbind(
        1
    )
    expected = pairwise_loss(
        implicit_rewards(chosen, reference_chosen, beta), implicit_rewards(rejected, reference_rejected, beta)
    )
    torch.testing.assert_close(dpo_loss(margins(batch, beta)), expected)


@given(pairs, beta)
def test_ipo_is_equation_17(batch, beta):
    expected = [(((c - rc) - (r - rr)) - 1 / (2 * beta)) ** 2 for c, r, rc, rr in batch]
    torch.testing.assert_close(
        ipo_loss(margins(batch, beta), beta), torch.tensor(expected, dtype=torch.float64)
    )


@given(st.floats(-5, -0.001), st.floats(-5, -0.001))
def test_orpo_is_equation_7(chosen, rejected):
    odds = [math.exp(x) / (1 - math.exp(x)) for x in (chosen, rejected)]
    loss = odds_ratio_loss(*(torch.tensor([x], dtype=torch.float64) for x in (chosen, rejected)))
    assert float(loss) == pytest.approx(math.log1p(odds[1] / odds[0]), rel=1e-9)


def test_a_response_that_is_certain_has_a_finite_loss_and_gradient():
    certain = torch.zeros(1, requires_grad=True)
    loss = odds_ratio_loss(torch.tensor([-1.0]), certain)
    loss.backward()
    assert bool(loss.isfinite())
    assert certain.grad.tolist() == [0.0]


def test_a_margin_of_the_target_has_even_odds():
    assert float(dpo_loss(torch.tensor([0.7]), target=0.7)) == pytest.approx(math.log(2))


@given(st.floats(-5, 5), beta, st.floats(0, 0.4))
def test_gradient_in_the_chosen_response(start, beta, smoothing):
    """Section 4 of DPO: -beta sigmoid(-margin); with smoothing it ends at sigmoid(margin) = 1 - s."""
    chosen = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    dpo_loss(implicit_rewards(chosen, torch.zeros(1), beta), smoothing).sum().backward()
    sigmoid = 1 / (1 + math.exp(-beta * start))
    assert float(chosen.grad) == pytest.approx(beta * (sigmoid - (1 - smoothing)), abs=1e-12)


@pytest.mark.parametrize("smoothing", [-0.1, 0.5, 1.0])
def test_smoothing_that_would_turn_the_preference_round(smoothing):
    with pytest.raises(ValueError, match=r"below 0\.5"):
        dpo_loss(torch.zeros(1), smoothing)
