"""Expected best of k responses to one prompt."""

from math import comb

import torch
from torch import Tensor


def best_of(scores: Tensor, groups: Tensor, k: int) -> float:
    """Mean over groups of the expected largest of k of a group's n scores, drawn without replacement:

        sum_i s_(i) C(i - 1, k - 1) / C(n, k),   s_(1) <= ... <= s_(n)

    Of scores that are 0 or 1 this is the unbiased estimate of pass@k (Chen et al. 2021, arXiv:2107.03374, eq. 1).

    Shapes: `scores` float [N], `groups` int64 [N], the prompt of each response. Groups of fewer than k are left out;
    nan where all are.
    """
    estimates = []
    for group in torch.unique(groups):
        ordered = scores[groups == group].double().sort().values
        n = len(ordered)
        if n >= k:
            weights = torch.tensor([comb(i, k - 1) / comb(n, k) for i in range(n)], dtype=torch.float64)
            estimates.append(ordered @ weights)
    return float(torch.stack(estimates).mean()) if estimates else float("nan")
