"""Agreement metrics of two sets of log-probabilities, against values computed by hand."""

import math

import pytest
import torch

from rlhf_trainer.maths.agreement import FEW, agreement, comparable, mean_abs_difference, ratio_outside


def test_mean_abs_difference_by_hand():
    assert float(mean_abs_difference(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]))) == 0.75


def test_token_mult_prob_error_by_hand():
    found = agreement(torch.log(torch.tensor([0.5, 0.4])), torch.log(torch.tensor([0.25, 0.8])))
    assert float(found["token_mult_prob_error"]) == pytest.approx(2.0)


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
