"""Scaled scores and the penalty for length, by hand and by the cases of DAPO's equation 13."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.rewards import overlong_penalty, scaled_scores


def test_scaled_by_hand():
    scores = torch.tensor([1.0, -3.0, 20.0])
    assert torch.equal(scaled_scores(scores), scores)
    assert scaled_scores(scores, bias=1.0, scale=0.5).tolist() == [1.0, -1.0, 10.5]
    assert scaled_scores(scores, bias=1.0, scale=0.5, clip=(-0.5, 0.8)).tolist() == pytest.approx(
        [0.8, -0.5, 0.8]
    )


def test_penalty_by_hand():
    penalty = overlong_penalty(torch.tensor([1, 80, 85, 90, 100, 101, 500]), max_length=100, buffer=20)
    torch.testing.assert_close(penalty, torch.tensor([0.0, 0.0, -0.25, -0.5, -1.0, -1.0, -1.0]))


@given(st.lists(st.integers(1, 5000), max_size=20), st.integers(1, 4000), st.data())
def test_penalty_is_equation_13(lengths, max_length, data):
    buffer = data.draw(st.integers(1, max_length))
    expected = []
    for length in lengths:
        if length <= max_length - buffer:
            expected.append(0.0)
        elif length <= max_length:
            expected.append((max_length - buffer - length) / buffer)
        else:
            expected.append(-1.0)
    penalty = overlong_penalty(torch.tensor(lengths, dtype=torch.int64), max_length, buffer)
    torch.testing.assert_close(penalty, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("buffer", [0, 11])
def test_buffer_out_of_range(buffer):
    with pytest.raises(ValueError, match=f"1 to 10 tokens \\(the longest response\\); got {buffer}"):
        overlong_penalty(torch.tensor([1]), max_length=10, buffer=buffer)
