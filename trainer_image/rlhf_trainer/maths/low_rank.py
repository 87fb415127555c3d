"""Low-rank updates of weight matrices (Hu et al. 2021, arXiv:2106.09685), merged alike by trainer and generators."""

from dataclasses import dataclass

import torch
from torch import Tensor

A, B = ".lora_A", ".lora_B"
"""Suffixes of the names of A and B in a broadcast, after the weight's name."""


@dataclass(frozen=True)
class LowRank:
    """scale B A beside a weight W: A [rank, in], B [out, rank], W [out, in], or [in, out] where it is `transposed`.

    With E `experts` W is [E, out, in], or [E, in, out], and A and B hold a matrix of each as PEFT lays them out: A [E
    rank, in], the experts one after the other, B [out, rank E], those of a rank side by side.
    """

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool
    experts: int | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of W. Raises ValueError where A and B cannot be multiplied."""
        flat = self.a.dim() == 2 and self.b.dim() == 2 and self.a.shape[0] == self.b.shape[1]
        if not flat or self.a.shape[0] % (self.experts or 1):
            raise ValueError(
                f"the shapes of A {list(self.a.shape)} and B {list(self.b.shape)} cannot be multiplied"
            )
        shape = (self.b.shape[0], self.a.shape[1])
        whole = shape[::-1] if self.transposed else shape
        return torch.Size(whole if self.experts is None else (self.experts, *whole))

    def merged(self, weight: Tensor) -> Tensor:
        """W + scale B A, computed in float32 and rounded once, to W's dtype: contiguous, of W's shape. Bitwise equal on
        devices of one kind, because all merge here and always a whole weight."""
        # Copied, since libraries choose kernels by memory alignment, which differs in a bucket.
        a, b = (matrix.detach().to(torch.float32, copy=True) for matrix in (self.a, self.b))
        merged = torch.empty(weight.shape, dtype=torch.float32, device=weight.device).copy_(weight.detach())
        if self.experts is not None:
            a = a.view(self.experts, -1, a.shape[1])
            b = b.view(len(b), -1, self.experts).permute(2, 0, 1).contiguous()
        left, right = (a.mT, b.mT) if self.transposed else (b, a)
        if self.experts is None:
            return merged.addmm_(left, right, alpha=self.scale).to(weight.dtype)
        return merged.baddbmm_(left, right, alpha=self.scale).to(weight.dtype)
