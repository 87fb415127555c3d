"""Entropy of next-token distributions."""

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """H = logsumexp(z) - sum softmax(z) z of each row, z in float32 less the row's largest, so that no digit is lost.

    Differentiable in the logits; tokens at -inf (cut off by top-k or top-p) add nothing, and get no gradient.
    Shapes: float [n, V], of any dtype -> float32 [n] in nats, from 0 to log V. The caller divides by the
    temperature, and bounds memory (4 n V float32 at its peak) by the size of its chunks.
    """
    z = logits.float()
    z = z - z.amax(-1, keepdim=True).detach()
    p = torch.softmax(z, -1)
    return torch.logsumexp(z, -1) - (p * z.masked_fill(p == 0, 0.0)).sum(-1)
