"""Agreement metrics of two sets of log-probabilities, against values computed by hand."""

import math

import pytest
import torch

from rlhf_trainer.maths.agreement import FEW, agreement, comparable, ratio_outside

SAMPLED = torch.tensor([-1.0, -1.0, -1.0, 0.0])
LOGPROBS = SAMPLED - torch.tensor([0.0, 0.5, -1.5, 17.5])


def test_agreement_by_hand():
    metrics = {name: float(value) for name, value in agreement(LOGPROBS, SAMPLED, 4).items()}
    assert metrics == pytest.approx(
        {
            "logprob_difference": 19.5 / 4,
            "token_mult_prob_error": (1 + math.exp(0.5) + math.exp(1.5) + math.exp(17.5)) / 4,
            "ratio_outside_share": 0.75,
            "logprob_outlier_share": 0.5,
            "logprob_outliers": 2,
            "logprob_difference_max": 17.5,
        }
    )


@pytest.mark.parametrize("cut", [0, 1, 3, 4])
def test_agreement_of_parts_adds_up_to_that_of_the_whole_but_for_its_maximum(cut):
    whole = agreement(LOGPROBS, SAMPLED, 4)
    parts = [agreement(LOGPROBS[at], SAMPLED[at], 4) for at in (slice(cut), slice(cut, 4))]
    for name, value in whole.items():
        join = max if name == "logprob_difference_max" else sum
        assert float(join(part[name] for part in parts)) == pytest.approx(float(value)), name


def test_a_token_whose_difference_is_not_a_number_is_an_outlier():
    metrics = agreement(torch.tensor([math.nan, -1.0]), torch.tensor([-1.0, -1.0]), 2)
    assert float(metrics["logprob_outliers"]) == 1


def test_ratio_outside_by_hand():
    sampled = torch.full((5,), -1.0)
    logprobs = sampled + torch.log(torch.tensor([1.0, 1.05, 1.15, 0.95, 0.85]))
    assert float(ratio_outside(logprobs, sampled)) == pytest.approx(0.4)
    assert float(ratio_outside(logprobs, sampled, low=0.8, high=1.2)) == 0


def test_what_is_not_a_number_is_outside():
    impossible = torch.tensor([-1.0, -math.inf, math.nan, -1.0])
    assert float(ratio_outside(impossible, torch.tensor([-1.0, -math.inf, -1.0, -math.inf]))) == 0.75


@pytest.mark.parametrize("keep", [False, True])
def test_all_tokens_of_the_present_version_are_compared_however_few(keep):
    assert comparable(torch.tensor([3, 3]), 3, keep=keep).all()
    assert not comparable(torch.tensor([2, 2]), 3, keep=keep).any()


def test_of_tokens_of_several_versions_those_of_the_present_one_are_compared_if_they_are_many():
    versions = torch.tensor([3] * FEW + [2, 4])
    assert comparable(versions, 3, keep=False).tolist() == [True] * FEW + [False, False]
    assert not comparable(versions, 3, keep=True).any(), "their keys and values are of both"
    assert not comparable(versions[1:], 3, keep=False).any()
