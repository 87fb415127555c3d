"""Packed to padded and back."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.tensors.ragged import (
    check_lengths,
    check_mask,
    pad,
    response_mask,
    sequence_sums,
    to_tokens,
)


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


def test_sums_by_hand():
    x, lengths = torch.tensor([5.0, 6.0, 7.0, 8.0, 9.0], requires_grad=True), torch.tensor([1, 3, 1])
    mask = torch.tensor([True, True, False, True, False])
    assert sequence_sums(x, lengths).tolist() == [5.0, 21.0, 9.0]
    sums = sequence_sums(x, lengths, mask)
    assert sums.tolist() == [5.0, 14.0, 0.0]
    (sums * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [1.0, 10.0, 0.0, 10.0, 0.0]


@given(st.lists(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50), max_size=6))
def test_sums_are_exact_to_float32_and_know_no_company(batch):
    x = torch.tensor([value for sequence in batch for value in sequence], dtype=torch.float32)
    lengths = torch.tensor([len(sequence) for sequence in batch], dtype=torch.int64)
    expected = torch.tensor([math.fsum(sequence) for sequence in batch], dtype=torch.float32)
    sums = sequence_sums(x, lengths)
    torch.testing.assert_close(sums, expected, rtol=1.2e-7, atol=1e-12)
    alone = [sequence_sums(torch.tensor(s), torch.tensor([len(s)])) for s in batch]
    assert torch.equal(sums, torch.cat([torch.zeros(0), *alone]))


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(1, 9)), max_size=6))
def test_to_tokens_repeats_the_value_of_each_sequence(rows):
    values = torch.tensor([value for value, _ in rows], dtype=torch.float64)
    lengths = torch.tensor([length for _, length in rows], dtype=torch.int64)
    assert to_tokens(values, lengths).tolist() == [value for value, length in rows for _ in range(length)]


def test_values_and_masks_that_do_not_fit():
    with pytest.raises(ValueError, match="2 sequences need as many values"):
        to_tokens(torch.zeros(3), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"bool; got torch\.int64"):
        check_mask(torch.ones(3, dtype=torch.int64), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="cannot hold 2 responses of 3 tokens"):
        sequence_sums(torch.zeros(3), torch.tensor([1, 2]), torch.ones(2, dtype=torch.bool))
