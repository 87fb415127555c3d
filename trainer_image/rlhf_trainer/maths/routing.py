"""Load of a mixture's experts: choices counted, and the loss that evens them out."""

import torch
from torch import Tensor


def expert_loads(chosen: Tensor, owners: Tensor, sequences: int, experts: int) -> Tensor:
    """Number of choices of each expert by the tokens of each sequence: float32 [n, E].

    `chosen` int64 [T, K]: the experts of each token; `owners` int64 [T]: the sequence of each token, n for padding,
    which counts nowhere.
    """
    index = (owners[:, None] * experts + chosen).flatten()
    counts = torch.zeros((sequences + 1) * experts, device=chosen.device)
    return counts.index_add_(0, index, torch.ones_like(index, dtype=counts.dtype)).view(-1, experts)[:-1]


def balance_loss(logits: Tensor, loads: Tensor, owners: Tensor, lengths: Tensor) -> Tensor:
    """Sum over tokens of E sum_e f_e p_e: p the token's probabilities of the E experts, f the share of its sequence's
    tokens that chose e, without a gradient.

    Its mean over a sequence's tokens is the loss of Fedus et al. 2021 (arXiv:2101.03961, eq. 4 to 6), of each sequence
    as in DeepSeek-AI 2024 (arXiv:2412.19437, eq. 17 to 20) so that it does not depend on what shares a batch; K where
    all experts have the same load. `logits` [T, E], `loads` and `owners` as in `expert_loads`, `lengths` int64 [n]: the
    tokens of each sequence -> float32 scalar.
    """
    shares = torch.nn.functional.pad(loads / lengths[:, None], (0, 0, 0, 1))[owners]
    return logits.shape[1] * (shares * logits.float().softmax(-1)).sum()


def count_replaced(own: Tensor, replayed: Tensor) -> Tensor:
    """Number of tokens of which a router's `own` experts, [T, K], are others than those `replayed`, and of those that
    have some to replay: float64 [2]. Their order does not matter; one that is negative stands for none."""
    known = replayed[:, 0] >= 0
    differ = (own.sort().values != replayed.sort().values).any(-1) & known
    return torch.stack([differ.sum(), known.sum()]).double()


def load_statistics(loads: Tensor) -> dict[str, float]:
    """Statistics of the choices [L, E] of each layer's experts: the largest share of a layer's choices that one expert
    has, the mean entropy of these shares as a share of the largest possible one, and the share of experts that no token
    chose."""
    shares = loads / loads.sum(1, keepdim=True)
    entropy = -torch.xlogy(shares, shares).sum(1) / torch.tensor(float(loads.shape[1])).log()
    return {
        "expert_share_max": float(shares.max()),
        "expert_entropy": float(entropy.mean()),
        "experts_unused_share": float((loads == 0).double().mean()),
    }
