"""The best of k responses, against all ways to draw them."""

import itertools
import math

import pytest
import torch

from rlhf_trainer.maths.best_of import best_of

SCORES = {0: [0.2, -1.0, 3.0, 0.5], 1: [1.0, 1.0, 0.0, 0.0], 7: [-2.0, -2.5, 4.0, 0.0]}


def drawn(scores: list[float], k: int) -> float:
    draws = list(itertools.combinations(scores, k))
    return sum(max(draw) for draw in draws) / len(draws)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_it_is_the_mean_of_the_largest_over_every_draw(k):
    rows = [(score, group) for group, scores in SCORES.items() for score in scores][::-1]
    scores, groups = torch.tensor([s for s, _ in rows]), torch.tensor([g for _, g in rows])
    expected = sum(drawn(group_scores, k) for group_scores in SCORES.values()) / len(SCORES)
    assert best_of(scores, groups, k) == pytest.approx(expected, abs=1e-6)


def test_of_zeros_and_ones_it_is_pass_at_k():
    n, right, k = 10, 3, 4
    scores = torch.tensor([1.0] * right + [0.0] * (n - right))
    expected = 1 - math.comb(n - right, k) / math.comb(n, k)
    assert best_of(scores, torch.zeros(n, dtype=torch.int64), k) == pytest.approx(expected)


def test_a_prompt_with_fewer_responses_is_left_out():
    scores, groups = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([0, 0, 1])
    assert best_of(scores, groups, 2) == 1.0
    assert math.isnan(best_of(scores, groups, 3))
