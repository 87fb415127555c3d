"""Low-rank updates of weight matrices (Hu et al. 2021, arXiv:2106.09685), merged alike by trainer and generators."""

from dataclasses import dataclass

import torch
from torch import Tensor

A, B, MAGNITUDE = ".lora_A", ".lora_B", ".lora_magnitude"
"""Suffixes of the names of A, B and magnitudes in a broadcast, after the weight's name."""


@dataclass(frozen=True)
class LowRank:
    """scale B A beside a weight W: A [rank, in], B [out, rank], W [out, in], or [in, out] where it is `transposed`.

    With E `experts` W is [E, out, in], or [E, in, out], and A and B hold a matrix of each as PEFT lays them out: A [E
    rank, in], the experts one after the other, B [out, rank E], those of a rank side by side.

    With a `magnitude` m [out], each output has its own length (DoRA: Liu et al. 2024, arXiv:2402.09353, equation 5): m
    (W + scale B A) / ||W + scale B A||, by the norm of each output's weights.
    """

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool
    experts: int | None = None
    magnitude: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """Shape of W. Raises ValueError where A and B cannot be multiplied, or the magnitudes are not those of B's."""
        flat = self.a.dim() == 2 and self.b.dim() == 2 and self.a.shape[0] == self.b.shape[1]
        if not flat or self.a.shape[0] % (self.experts or 1):
            raise ValueError(
                f"the shapes of A {list(self.a.shape)} and B {list(self.b.shape)} cannot be multiplied"
            )
        shape = (self.b.shape[0], self.a.shape[1])
        if self.magnitude is not None and list(self.magnitude.shape) != [shape[0]]:
            raise ValueError(f"the magnitudes of {shape[0]} outputs have shape {list(self.magnitude.shape)}")
        whole = shape[::-1] if self.transposed else shape
        return torch.Size(whole if self.experts is None else (self.experts, *whole))

    def merged(self, weight: Tensor) -> Tensor:
        """W + scale B A, computed in float32 and rounded once, to W's dtype: contiguous, of W's shape. Bitwise equal on
        devices of one kind, because all merge here and always a whole weight. The factor of a magnitude is rounded as
        `_factor` says."""
        # Copied, since libraries choose kernels by memory alignment, which differs in a bucket.
        a, b = (matrix.detach().to(torch.float32, copy=True) for matrix in (self.a, self.b))
        merged = torch.empty(weight.shape, dtype=torch.float32, device=weight.device).copy_(weight.detach())
        if self.experts is not None:
            a = a.view(self.experts, -1, a.shape[1])
            b = b.view(len(b), -1, self.experts).permute(2, 0, 1).contiguous()
        left, right = (a.mT, b.mT) if self.transposed else (b, a)
        if self.experts is None:
            merged.addmm_(left, right, alpha=self.scale)
            return (merged if self.magnitude is None else merged.mul_(self._factor(weight))).to(weight.dtype)
        return merged.baddbmm_(left, right, alpha=self.scale).to(weight.dtype)

    def _factor(self, weight: Tensor) -> Tensor:
        """m / ||W + scale B A||, to be broadcast over W: in W's dtype, as PEFT computes it in the forward pass. So both
        multiply by the same numbers in bfloat16 too, by 1 where nothing is trained yet."""
        assert self.magnitude is not None
        a, b = (matrix.detach().to(weight.dtype, copy=True) for matrix in (self.a, self.b))
        whole = weight.detach().clone(memory_format=torch.contiguous_format)
        whole = (whole.T if self.transposed else whole) + self.scale * (b @ a)
        factor: Tensor = self.magnitude.detach().to(weight.dtype) / torch.linalg.norm(whole, dim=1)
        return factor if self.transposed else factor[:, None]
