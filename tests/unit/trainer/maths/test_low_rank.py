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


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_expert_has_its_own_update(dtype, transposed):
    """PEFT's layout: the experts one after the other in A, side by side within a rank in B."""
    torch.manual_seed(0)
    a, b = torch.randn(3 * 2, 10, dtype=dtype), torch.randn(7, 2 * 3, dtype=dtype)
    weight = torch.randn((3, 10, 7) if transposed else (3, 7, 10), dtype=dtype)
    update = LowRank(a, b, 1.7, transposed, experts=3)
    merged = update.merged(weight)
    assert update.shape == weight.shape
    for expert in range(3):
        product = 1.7 * b.double()[:, expert::3] @ a.double()[2 * expert : 2 * expert + 2]
        expected = (weight[expert].double() + (product.T if transposed else product)).to(dtype)
        torch.testing.assert_close(
            merged[expert], expected, rtol=0, atol=5e-6 if dtype is torch.float32 else 0
        )
    with pytest.raises(ValueError, match=r"A \[6, 10\] and B \[7, 6\] cannot be multiplied"):
        _ = LowRank(a, b, 1.7, transposed, experts=4).shape


@pytest.mark.parametrize("transposed", [False, True])
def test_a_magnitude_is_the_length_of_an_output_s_merged_weights(transposed):
    """Equation 5 of arXiv:2402.09353, one output at a time, in float64."""
    torch.manual_seed(0)
    a, b, magnitude = torch.randn(4, 40), torch.randn(24, 4), torch.rand(24) + 0.5
    weight = torch.randn((40, 24) if transposed else (24, 40))
    merged = LowRank(a, b, 1.7, transposed, magnitude=magnitude).merged(weight)
    rows, lengths = (weight.T if transposed else weight).double(), magnitude.double()
    for i, row in enumerate(rows):
        direction = row + 1.7 * sum(b[i, k].double() * a[k].double() for k in range(4))
        expected = lengths[i] * direction / sum(float(x) ** 2 for x in direction) ** 0.5
        one = merged[:, i] if transposed else merged[i]
        torch.testing.assert_close(one.double(), expected, rtol=1e-5, atol=1e-6)
    assert merged.shape == weight.shape
    assert merged.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_magnitude_that_is_not_trained_yet_leaves_the_weight_as_it_is(dtype):
    torch.manual_seed(0)
    weight = torch.randn(64, 40).to(dtype)
    a, b = torch.randn(4, 40, dtype=dtype), torch.zeros(64, 4, dtype=dtype)
    magnitude = torch.linalg.norm(weight, dim=1)
    assert torch.equal(LowRank(a, b, 1.7, False, magnitude=magnitude).merged(weight), weight)


def test_magnitudes_of_other_outputs_are_refused():
    with pytest.raises(ValueError, match=r"magnitudes of 24 outputs have shape \[40\]"):
        _ = LowRank(torch.ones(4, 40), torch.ones(24, 4), 1.0, False, magnitude=torch.ones(40)).shape


def test_matrices_without_a_product_are_refused():
    for a, b in ((torch.ones(3, 4), torch.ones(5, 2)), (torch.ones(3), torch.ones(3, 3))):
        with pytest.raises(ValueError, match="cannot be multiplied"):
            _ = LowRank(a, b, 1.0, False).shape
