"""Advantages within groups against plain Python over dictionaries of scores, by hand, and under any order."""

import statistics
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.groups import (
    batch_standardized,
    best_and_worst,
    count_at_bounds,
    count_without_spread,
    each_standardized,
    group_centered,
    group_standardized,
    has_spread,
    leave_one_out,
    paired_rows,
)

score = st.floats(-10, 10, width=32)
rows = st.lists(st.tuples(score, st.sampled_from([7, -3, 0, 2**40, 5])), min_size=1, max_size=24)
advantage = st.sampled_from([group_centered, group_standardized, batch_standardized, leave_one_out])


def tensors(batch: list, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([r for r, _ in batch], dtype=dtype), torch.tensor([g for _, g in batch])


def scores_of_groups(batch: list) -> dict[int, list[float]]:
    members = defaultdict(list)
    for r, group in batch:
        members[group].append(r)
    return members


def test_by_hand():
    scores, groups = torch.tensor([1.0, 5.0, 3.0, 9.0, 2.0]), torch.tensor([4, 1, 4, 6, 4])
    # group 4: 1, 3, 2 with mean 2 and sample deviation 1; groups 1 and 6 have one member
    torch.testing.assert_close(group_centered(scores, groups), torch.tensor([-1.0, 0.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(
        group_standardized(scores, groups, epsilon=1.0), torch.tensor([-0.5, 0.0, 0.5, 0.0, 0.0])
    )
    # 1 - (3 + 2) / 2, 3 - (1 + 2) / 2, 2 - (1 + 3) / 2
    torch.testing.assert_close(leave_one_out(scores, groups), torch.tensor([-1.5, 0.0, 1.5, 0.0, 0.0]))


@given(rows)
def test_are_what_statistics_of_each_group_say(batch):
    members = scores_of_groups(batch)
    grpo, dr_grpo, rloo, of_batch = [], [], [], []
    spread = statistics.stdev(r for r, _ in batch) if len(batch) > 1 else 0.0
    for r, group in batch:
        own, n = members[group], len(members[group])
        deviation = statistics.stdev(own) if n > 1 else 0.0
        grpo.append((r - statistics.fmean(own)) / (deviation + 1e-4))
        dr_grpo.append(r - statistics.fmean(own))
        of_batch.append((r - statistics.fmean(own)) / (spread + 1e-4))
        rloo.append(r - (sum(own) - r) / (n - 1) if n > 1 else 0.0)
    scores, groups = tensors(batch)
    functions = (group_standardized, group_centered, leave_one_out, batch_standardized)
    for function, expected in zip(functions, (grpo, dr_grpo, rloo, of_batch), strict=True):
        torch.testing.assert_close(
            function(scores, groups), torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=1e-9
        )


@given(st.lists(st.tuples(score, score, st.sampled_from([7, -3, 0])), min_size=2, max_size=24))
@pytest.mark.parametrize("of_batch", [False, True])
def test_rewards_that_are_each_standardised_are_what_statistics_say(of_batch, batch):
    """Their weighted sum, over its deviation from its mean in the batch."""
    totals = [0.0] * len(batch)
    for weight, reward in ((0.5, 0), (-2.0, 1)):
        whole = statistics.stdev(row[reward] for row in batch)
        for i, row in enumerate(batch):
            own = [other[reward] for other in batch if other[2] == row[2]]
            deviation = whole if of_batch else statistics.stdev(own) if len(own) > 1 else 0.0
            totals[i] += weight * (row[reward] - statistics.fmean(own)) / (deviation + 1e-4)
    mean, deviation = statistics.fmean(totals), statistics.stdev(totals)
    expected = [(total - mean) / (deviation + 1e-4) for total in totals]
    first, second, groups = (torch.tensor(column) for column in zip(*batch, strict=True))
    weighted = [(0.5, first.double()), (-2.0, second.double())]
    advantages = each_standardized(weighted, groups, batch_standardized if of_batch else group_standardized)
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), atol=1e-7, rtol=1e-7)


def test_one_reward_with_a_weight_has_the_advantages_of_grpo_in_deviations_of_the_batch():
    scores = torch.tensor([0.0, 1.0, 1.0, 3.0, 3.5, 9.0])
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    alone = group_standardized(scores.double(), groups)
    both = each_standardized([(3.0, scores), (0.0, scores.flip(0))], groups)
    torch.testing.assert_close(both, (3 * alone / (3 * alone.std() + 1e-4)).float())


def test_a_reward_without_a_spread_in_a_group_gives_it_nothing():
    """Exactly, whatever it is in other groups."""
    flat, spread = torch.tensor([0.1, 0.1, 0.1, 0.0, 5.0]), torch.tensor([1.0, 0.0, 1.0, 0.1, 0.1])
    groups = torch.tensor([0, 0, 0, 1, 1])
    both = each_standardized([(1.0, flat), (1.0, spread)], groups)
    own = group_standardized(spread[:3].double(), groups[:3])
    torch.testing.assert_close(both[:3] / both[0], (own / own[0]).float())
    neither = each_standardized([(1.0, flat), (1.0, flat * 2)], groups)
    assert neither[:3].tolist() == [0.0] * 3
    assert neither[3:].abs().min() > 0.5


@given(rows, advantage, st.randoms(use_true_random=False))
def test_order_of_rows_and_names_of_groups_change_nothing(batch, function, random):
    order = random.sample(range(len(batch)), len(batch))
    scores, groups = tensors(batch)
    torch.testing.assert_close(
        function(scores[order], groups[order]), function(scores, groups)[order], atol=1e-9, rtol=1e-9
    )
    torch.testing.assert_close(function(scores, -groups + 3), function(scores, groups), atol=1e-9, rtol=1e-9)


@given(rows, st.sampled_from([group_centered, group_standardized, leave_one_out]))
def test_a_group_does_not_see_the_others_and_sums_to_zero(batch, function):
    """Bit for bit: prompts that share a step do not share anything else."""
    scores, groups = tensors(batch)
    together = function(scores, groups)
    for group in groups.unique():
        own = groups == group
        assert torch.equal(function(scores[own], groups[own]), together[own])
        assert float(together[own].sum()) == pytest.approx(0, abs=1e-6)


@given(score, st.integers(1, 200), advantage)
def test_equal_scores_give_exactly_zero(value, count, function):
    advantages = function(torch.full((count,), value), torch.zeros(count, dtype=torch.int64))
    assert advantages.dtype == torch.float32
    assert advantages.tolist() == [0.0] * count


@given(rows)
def test_a_group_has_spread_if_its_largest_score_is_above_its_smallest(batch):
    scores, groups = tensors(batch)
    members = scores_of_groups(batch)
    expected = [max(members[g]) > min(members[g]) for _, g in batch]
    assert has_spread(scores, groups).tolist() == expected


def test_groups_without_spread_are_those_that_teach_nothing():
    scores, groups = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5]), torch.tensor([0, 0, 1, 1, 2])
    assert has_spread(scores, groups).tolist() == [False, False, True, True, False]
    assert (group_standardized(scores, groups) != 0).tolist() == has_spread(scores, groups).tolist()
    assert count_without_spread(scores, groups) == (2, 3)
    assert count_at_bounds(scores, groups) == (1, 0)
    assert count_at_bounds(-scores, groups) == (0, 1)
    assert count_at_bounds(torch.ones(5), groups) == (0, 0), "no response is better than another"


@pytest.mark.parametrize(
    "function", [group_centered, group_standardized, batch_standardized, leave_one_out, has_spread]
)
def test_no_responses_and_ids_that_do_not_fit(function):
    nothing = function(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert nothing.shape == (0,)
    with pytest.raises(
        ValueError, match="one value for each response, not arrays of shape \\(2,\\) and \\(3,\\)"
    ):
        function(torch.zeros(2), torch.zeros(3, dtype=torch.int64))


equal_scores = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([7, -3, 2**40])), min_size=1, max_size=12
)


@given(equal_scores, st.randoms(use_true_random=False))
def test_the_best_and_the_worst_of_each_group_are_a_pair(batch, random):
    scores, groups = tensors(batch)
    order = random.sample(range(len(batch)), len(batch))
    choice = best_and_worst(scores, groups, torch.tensor(order)).tolist()
    pairs = list[int]()
    for group in sorted(set(groups.tolist())):
        rows = [row for row in order if groups[row] == group]
        highest, lowest = max(scores[rows].tolist()), min(scores[rows].tolist())
        if highest > lowest:
            best = [row for row in rows if scores[row] == highest][-1]
            worst = next(row for row in rows if scores[row] == lowest)
            pairs += [best, worst]
    expected = {row: 1.0 if place % 2 == 0 else -1.0 for place, row in enumerate(pairs)}
    assert choice == [expected.get(row, 0.0) for row in range(len(batch))]
    assert paired_rows(torch.tensor(choice), groups).tolist() == pairs


@pytest.mark.parametrize("choice", [(1, 0, 0), (1, 1, 0), (1, 0, -1), (1, -1, 0.5), (-1, -1, 1)])
def test_a_pair_is_one_better_and_one_worse_response_to_a_prompt(choice):
    with pytest.raises(ValueError, match="a pair is one response with 1 and one with -1 to the same prompt"):
        paired_rows(torch.tensor(choice).float(), torch.tensor([5, 5, 6]))
