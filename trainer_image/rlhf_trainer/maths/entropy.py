"""Entropy of next-token distributions."""

from torch import Tensor


def entropy(logprobs: Tensor) -> Tensor:
    """H = -sum p log p of each row of finite log-probabilities.

    Shapes: float [n, V] in nats -> [n] in nats, from 0 to log V, same dtype. The caller bounds memory (n V at its peak)
    by the size of its chunks.
    """
    return -(logprobs.exp() * logprobs).sum(-1)
