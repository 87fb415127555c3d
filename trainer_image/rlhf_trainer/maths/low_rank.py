"""Low-rank updates of weight matrices (Hu et al. 2021, arXiv:2106.09685), merged alike by trainer and generators."""

from dataclasses import dataclass

import torch
from torch import Tensor

A, B = ".lora_A", ".lora_B"
"""Suffixes of the names of A and B in a broadcast, after the weight's name."""


@dataclass(frozen=True)
class LowRank:
    """scale B A beside a weight W: A [rank, in], B [out, rank], W [out, in], or [in, out] where it is `transposed`."""

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool

    @property
    def shape(self) -> torch.Size:
        """Shape of W. Raises ValueError where A and B cannot be multiplied."""
        if self.a.dim() != 2 or self.b.dim() != 2 or self.a.shape[0] != self.b.shape[1]:
            raise ValueError(
                f"the shapes of A {list(self.a.shape)} and B {list(self.b.shape)} cannot be multiplied"
            )
        shape = (self.b.shape[0], self.a.shape[1])
        return torch.Size(shape[::-1] if self.transposed else shape)

    def merged(self, weight: Tensor) -> Tensor:
        """W + scale B A, computed in float32 and rounded once, to W's dtype: contiguous, of W's shape. Bitwise equal on
        devices of one kind, because all merge here and always a whole weight."""
        # Copied, since libraries choose kernels by memory alignment, which differs in a bucket.
        a, b = (matrix.detach().to(torch.float32, copy=True) for matrix in (self.a, self.b))
        merged = torch.empty(weight.shape, dtype=torch.float32, device=weight.device).copy_(weight.detach())
        left, right = (a.T, b.T) if self.transposed else (b, a)
        return merged.addmm_(left, right, alpha=self.scale).to(weight.dtype)
