"""Advantages of whole responses against the other responses to the same prompt.

Rows with the same id in `groups` are one group: of any size, any id, in any order. Means are taken in float64, so that
equal float32 scores have advantages of exactly 0.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def _groups(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's group as 0, 1, ... and the size of that group: two int64 [N]."""
    if scores.ndim != 1 or scores.shape != groups.shape:
        raise ValueError(
            "scores and groups are one value for each response, not arrays of shape "
            f"{tuple(scores.shape)} and {tuple(groups.shape)}"
        )
    _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    return index, sizes[index]


def _sums(x: Tensor, index: Tensor) -> Tensor:
    """The sum of each row's group: [N], dtype of `x`."""
    return torch.zeros_like(x).index_add(0, index, x)[index]


def _deviations(scores: Tensor, index: Tensor, sizes: Tensor) -> Tensor:
    """r - mean(r of its group): float64 [N]."""
    x = scores.double()
    return x - _sums(x, index) / sizes


def group_centered(scores: Tensor, groups: Tensor) -> Tensor:
    """r - mean(r of its group), not divided by the standard deviation: the advantage of Dr. GRPO.

    Shapes: `scores` float [N] in units of reward, `groups` int64 [N] -> [N] in units of reward, same dtype; a
    group of one gives 0. Raises ValueError where they do not fit.
    Source: Liu et al. 2025 (arXiv:2503.20783), section 3.2.
    """
    return _deviations(scores, *_groups(scores, groups)).to(scores.dtype)


def group_standardized(scores: Tensor, groups: Tensor, epsilon: float = 1e-4) -> Tensor:
    """(r - mean) / (std + epsilon) with mean and standard deviation of its group: the advantage of GRPO.

    std is the sample's, sqrt(sum (r - mean)^2 / (n - 1)): the paper does not say which, and both TRL and verl
    divide by n - 1, where the population's would make advantages sqrt(n / (n - 1)) larger. `epsilon` as in TRL.
    Shapes: `scores` float [N] in units of reward, `groups` int64 [N] -> [N] without a unit, same dtype; a group
    of one gives 0. Raises ValueError where they do not fit.
    Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2.
    """
    index, sizes = _groups(scores, groups)
    deviations = _deviations(scores, index, sizes)
    std = (_sums(deviations.square(), index) / (sizes - 1).clamp(min=1)).sqrt()
    return (deviations / (std + epsilon)).to(scores.dtype)


def batch_standardized(scores: Tensor, groups: Tensor, epsilon: float = 1e-4) -> Tensor:
    """(r - mean of its group) / (std + epsilon) with the standard deviation of all scores, whatever their groups: one
    scale for all prompts, which does not grow where the scores of a group are nearly equal.

    std is the sample's, as in `group_standardized`; the groups' means count to it.
    Shapes: `scores` float [N] in units of reward, `groups` int64 [N] -> [N] without a unit, same dtype; a group
    of one gives 0. Raises ValueError where they do not fit.
    Source: Liu et al. 2025 (arXiv:2508.08221), section 4.1 (Lite PPO); TRL's `scale_rewards="batch"`.
    """
    deviations = _deviations(scores, *_groups(scores, groups))
    x = scores.double()
    std = ((x - x.mean()).square().sum() / max(1, len(x) - 1)).sqrt()
    return (deviations / (std + epsilon)).to(scores.dtype)


def each_standardized(
    weighted: Sequence[tuple[float, Tensor]],
    groups: Tensor,
    standardize: Callable[[Tensor, Tensor], Tensor] = group_standardized,
    epsilon: float = 1e-4,
) -> Tensor:
    """A / (std(A) + epsilon), where A is the weighted sum of rewards that are each standardised: the advantage of GDPO.

    `weighted` has a weight and the scores of each reward; `standardize` is `group_standardized` as in the paper, or
    `batch_standardized`. std is the sample's, over all responses, whatever their groups. Their mean, which the paper
    subtracts, is 0, as that of every group is; so a group in which no reward has a spread gives exactly 0.
    Shapes: scores float [N] in any unit, `groups` int64 [N] -> [N] without a unit, dtype of the scores; a group of one
    gives 0. Pass the whole batch in one call. Raises ValueError where they do not fit.
    Source: Liu et al. 2026 (arXiv:2601.05242), eq. 4 (each reward), 5 (their sum) and 6 (over the batch), with a
    weight of each in eq. 5; TRL's `multi_objective_aggregation="normalize_then_sum"`, whose `epsilon` it is.
    """
    total = torch.zeros(len(groups), dtype=torch.float64)
    for weight, scores in weighted:
        total += weight * standardize(scores.double(), groups)
    std = (total.square().sum() / max(1, len(total) - 1)).sqrt()
    return (total / (std + epsilon)).to(weighted[0][1].dtype)


def leave_one_out(scores: Tensor, groups: Tensor) -> Tensor:
    """r - mean(r of the others in its group): the advantage of RLOO, as n / (n - 1) (r - mean of all n).

    Shapes: `scores` float [N] in units of reward, `groups` int64 [N] -> [N] in units of reward, same dtype; a
    group of one gives 0. Raises ValueError where they do not fit.
    Source: Ahmadian et al. 2024 (arXiv:2402.14740), section 2.2 (RLOO); Kool et al. 2019.
    """
    index, sizes = _groups(scores, groups)
    return (_deviations(scores, index, sizes) * sizes / (sizes - 1).clamp(min=1)).to(scores.dtype)


def has_spread(scores: Tensor, groups: Tensor) -> Tensor:
    """True for the responses of groups with max(r) > min(r); the others carry no gradient.

    DAPO's dynamic sampling keeps the groups with accuracy between 0 and 1; for other rewards that is a spread.
    Shapes: `scores` float [N], `groups` int64 [N] -> bool [N]; a group of one has none. Raises ValueError where they
    do not fit.
    Source: Yu et al. 2025 (arXiv:2503.14476), eq. 11.
    """
    index, _ = _groups(scores, groups)
    largest = torch.full_like(scores, -torch.inf).scatter_reduce(0, index, scores, "amax")
    smallest = torch.full_like(scores, torch.inf).scatter_reduce(0, index, scores, "amin")
    return (largest > smallest)[index]


def best_and_worst(scores: Tensor, groups: Tensor, order: Tensor) -> Tensor:
    """1 for the response with the highest score of its group, -1 for that with the lowest, 0 for all others and for
    groups without a spread.

    Of equal scores the one that is last in `order` is the best, and the first the worst: a random order, since rows may
    come in that of their completion, so that the first ones are short.
    Shapes: `scores` float [N], `groups` int64 [N], `order` int64 [N], which permutes 0 to N - 1 -> [N] without a unit,
    dtype of `scores`. Raises ValueError where they do not fit.
    Source: Guo et al. 2024 (arXiv:2402.04792), algorithm 1, for groups of two; Dong et al. 2024 (arXiv:2405.07863),
    the best and the worst of n, for larger ones.
    """
    index, _ = _groups(scores, groups)
    by_score = order[scores[order].argsort(stable=True)]
    by_group = by_score[index[by_score].argsort(stable=True)]
    ends = index.bincount().cumsum(0)
    begins = torch.nn.functional.pad(ends[:-1], (1, 0))
    choice = torch.zeros_like(scores)
    choice[by_group[begins]] = -1
    choice[by_group[ends - 1]] = 1
    return torch.where(has_spread(scores, groups), choice, 0)


def paired_rows(choice: Tensor, groups: Tensor) -> Tensor:
    """Rows of the pairs that `choice` makes as `best_and_worst` does: by group, the better one before the worse.

    Shapes: `choice` float [N], `groups` int64 [N] -> int64 [2 P]. Raises ValueError for a group with anything but one 1
    and one -1, or 0 alone.
    """
    rows = choice.nonzero()[:, 0]
    rows = rows[choice[rows].argsort(descending=True, stable=True)]
    rows = rows[groups[rows].argsort(stable=True)]
    better, worse = rows[0::2], rows[1::2]
    if len(better) == len(worse):
        together = groups[better] == groups[worse]
        whole = together & (choice[better] == 1) & (choice[worse] == -1)
        if bool(whole.all()) and len(groups[better].unique()) == len(better):
            return rows
    raise ValueError("a pair is one response with 1 and one with -1 to the same prompt; others have 0")


def count_without_spread(scores: Tensor, groups: Tensor) -> tuple[int, int]:
    """Number of groups without a spread of scores, and of all groups.

    Shapes: `scores` float [N], `groups` int64 [N]. Raises ValueError where they do not fit.
    """
    without = torch.unique(groups[~has_spread(scores, groups)])
    return len(without), len(torch.unique(groups))


def count_at_bounds(scores: Tensor, groups: Tensor) -> tuple[int, int]:
    """Number of groups all of whose scores are the highest of all, and of those whose scores are all the lowest; none
    where these are the same.

    Shapes: `scores` float [N], N >= 1, `groups` int64 [N]. Raises ValueError where they do not fit.
    """
    equal = ~has_spread(scores, groups)
    lowest, highest = scores.aminmax()
    if highest == lowest:
        return 0, 0
    return len(torch.unique(groups[equal & (scores == highest)])), len(
        torch.unique(groups[equal & (scores == lowest)])
    )
