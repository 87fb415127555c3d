"""Low-rank updates of weight matrices (Hu et al. 2021, arXiv:2106.09685), merged as trainer and generators do it."""

from dataclasses import dataclass

import torch
from torch import Tensor

A, B = ".lora_A", ".lora_B"
"""What the names of the two matrices have behind that of the weight where they travel."""


@dataclass(frozen=True)
class LowRank:
    """scale B A beside a weight W: A [rank, in], B [out, rank], W [out, in], or [in, out] where it is `transposed`."""

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool

    @property
    def shape(self) -> torch.Size:
        """Of W. Raises ValueError where A and B have no product."""
        if self.a.dim() != 2 or self.b.dim() != 2 or self.a.shape[0] != self.b.shape[1]:
            raise ValueError(f"A {list(self.a.shape)} and B {list(self.b.shape)} have no product")
        shape = (self.b.shape[0], self.a.shape[1])
        return torch.Size(shape[::-1] if self.transposed else shape)

    def merged(self, weight: Tensor) -> Tensor:
        """W + scale B A, computed in float32 and rounded once, to W's dtype: contiguous, of W's shape. The same on
        devices of one kind, which is why it is computed here alone and always for a whole weight."""
        # Copies, since libraries choose their kernels by how memory is aligned, which is not so in a bucket.
        a, b = (matrix.detach().to(torch.float32, copy=True) for matrix in (self.a, self.b))
        product = (b @ a).mul_(self.scale)
        if self.transposed:
            product = product.T
        return product.add_(weight.detach()).to(weight.dtype).contiguous()
