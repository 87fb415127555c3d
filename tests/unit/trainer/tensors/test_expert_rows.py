"""Rows of experts, as they come from an engine: which are refused, and what is made of them."""

import numpy as np
import pytest
import torch

from rlhf_trainer.tensors.expert_rows import UNKNOWN, ExpertRows, ExpertsShape, pack_rows

SHAPE = ExpertsShape(layers=2, chosen=2, experts=4)


def rows(*numbers: int) -> np.ndarray:
    """One for each number, in whose layers the first expert is the number, and then the one after it."""
    return np.array([[[n, n + 1], [n + 1, n]] for n in numbers], dtype=np.int16)


@pytest.mark.parametrize(("experts", "size"), [(4, 1), (256, 1), (257, 2)])
def test_an_expert_takes_a_byte_where_that_has_all(experts, size):
    shape = ExpertsShape(2, 2, experts)
    data = np.array([[[0, experts - 1], [1, 2]]]).astype(shape.dtype).tobytes()
    assert len(data) == shape.row_bytes == 4 * size
    assert shape.parse(data).tolist() == [[[0, experts - 1], [1, 2]]]


@pytest.mark.parametrize(
    ("data", "says"),
    [(bytes([0, 1, 2, 4]), "experts are 0 to 3; got 0 to 4"), (bytes([0, 1, 2, 2]), "one expert twice")],
)
def test_rows_that_no_router_of_the_model_could_choose_are_refused(data, says):
    with pytest.raises(ValueError, match=says):
        SHAPE.parse(data)


def test_rows_of_tokens_that_are_taken_back_go_with_them():
    known = ExpertRows([rows(0, 1), rows(2)])
    copied = known.copy()
    known.cut(2)
    assert known == ExpertRows([rows(0)])
    assert copied == ExpertRows([rows(0, 1, 2)]), "which is another one"
    known.fill(2, (2, 2))
    known.add([rows(1)])
    assert known.whole()[:, 0, 0].tolist() == [0, UNKNOWN, 1]
    known.fill(2, (2, 2))
    known.cut(9)
    assert len(known) == 0


def test_tokens_without_a_row_are_unknown():
    packed = pack_rows([(ExpertRows(), 1), (ExpertRows([rows(1, 2)]), 3)])
    assert packed.dtype == torch.int16
    assert packed[:, 0, 0].tolist() == [UNKNOWN, 1, 2, UNKNOWN]
    assert pack_rows([(ExpertRows(), 1)]) is None
