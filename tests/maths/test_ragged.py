"""Packed to padded and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.ragged import check_lengths, pad, response_mask


def test_by_hand():
    lengths = torch.tensor([1, 3])
    assert pad(torch.tensor([5, 6, 7, 8]), lengths).tolist() == [[5, 0, 0], [6, 7, 8]]
    assert response_mask(lengths).tolist() == [[True, False, False], [True, True, True]]


@given(st.lists(st.integers(1, 9), max_size=6))
def test_way_back(lengths):
    lengths = torch.tensor(lengths, dtype=torch.int64)
    x = torch.arange(1, int(lengths.sum()) + 1, dtype=torch.float64)
    padded = pad(x, lengths)
    assert torch.equal(padded[response_mask(lengths)], x)
    assert padded.sum() == x.sum()


@pytest.mark.parametrize(
    ("shape", "lengths"), [((3,), [1, 1]), ((2, 1), [1, 1]), ((1,), [0, 1]), ((0,), [1])]
)
def test_arrays_that_are_not_packed_so(shape, lengths):
    with pytest.raises(ValueError, match="token"):
        check_lengths(torch.zeros(shape), torch.tensor(lengths))
