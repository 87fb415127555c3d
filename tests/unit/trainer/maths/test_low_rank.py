"""A low-rank update merged into its weight: W + scale B A, rounded once."""

import pytest
import torch

from rlhf_trainer.maths.low_rank import LowRank


@pytest.mark.parametrize("scale", [1.0, 2.0, 1.7])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_the_sum_in_float32_rounded_once(dtype, transposed, scale):
    torch.manual_seed(0)
    a, b = torch.randn(4, 40, dtype=dtype), torch.randn(24, 4, dtype=dtype)
    weight = torch.randn((40, 24) if transposed else (24, 40), dtype=dtype)
    before = weight.clone()
    update = LowRank(a, b, scale, transposed)
    product = (b.double() @ a.double()) * scale
    expected = (weight.double() + (product.T if transposed else product)).to(dtype)
    merged = update.merged(weight)
    assert update.shape == weight.shape
    assert merged.dtype == dtype
    assert merged.is_contiguous()
    # In float32 the last bits are those of sums in another order; a second rounding to bfloat16 would show.
    torch.testing.assert_close(merged, expected, rtol=0, atol=5e-6 if dtype is torch.float32 else 0)
    assert torch.equal(weight, before)


def test_matrices_without_a_product_are_refused():
    for a, b in ((torch.ones(3, 4), torch.ones(5, 2)), (torch.ones(3), torch.ones(3, 3))):
        with pytest.raises(ValueError, match="cannot be multiplied"):
            _ = LowRank(a, b, 1.0, False).shape
