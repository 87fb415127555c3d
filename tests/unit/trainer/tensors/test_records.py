"""Packed sequences and columns: taking rows out gives what lists of lists would give."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.columns import Columns, MissingColumn
from rlhf_trainer.tensors.packed import ragged_index
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.tensors.sampling_mask import WHOLE, Kept

repeatable = settings(derandomize=True, deadline=None)
tokens = st.lists(st.integers(0, 50), min_size=1, max_size=6)
NAMES = ("sampled_logprobs", "logprobs", "reference_logprobs", "values", "advantages", "returns", "versions")
batches = st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6)


@st.composite
def batch_and_rows(draw) -> tuple[list, list[int]]:
    """A batch, and rows of it in any order, with repetitions, perhaps none."""
    batch = draw(batches)
    return batch, draw(st.lists(st.integers(0, len(batch) - 1), max_size=8))


def as_lists(sequences: Sequences) -> list[tuple[list[int], list[int]]]:
    rows = [(sequences.row(i).tolist(), int(sequences.prompt_lengths[i])) for i in range(len(sequences))]
    return [(row[:cut], row[cut:]) for row, cut in rows]


def test_ragged_index_by_hand():
    assert ragged_index(torch.tensor([4, 0, 9]), torch.tensor([2, 3, 1])).tolist() == [4, 5, 0, 1, 2, 9]
    nothing = torch.zeros(0, dtype=torch.int64)
    assert ragged_index(nothing, nothing).tolist() == []


@repeatable
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), max_size=8))
def test_ragged_index_is_ranges_end_to_end(ranges):
    starts, lengths = (torch.tensor([r[k] for r in ranges], dtype=torch.int64) for k in (0, 1))
    assert ragged_index(starts, lengths).tolist() == [p for s, n in ranges for p in range(s, s + n)]


def test_pack_by_hand():
    sequences = Sequences.pack([([1, 2], [3]), ((4,), (5, 6, 7))])
    assert sequences.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sequences.tokens.dtype == sequences.lengths.dtype == sequences.prompt_lengths.dtype == torch.int64
    assert sequences.lengths.tolist() == [3, 4]
    assert sequences.starts.tolist() == [0, 3]
    assert sequences.response_lengths.tolist() == [1, 3]
    assert sequences.response_starts.tolist() == [0, 1]
    assert sequences.response_index(torch.tensor([1, 0])).tolist() == [1, 2, 3, 0]


def test_pack_of_nothing():
    sequences = Sequences.pack([])
    assert len(sequences) == 0
    assert sequences.tokens.dtype == torch.int64
    assert len(sequences.select(torch.zeros(0, dtype=torch.int64))) == 0


@repeatable
@given(batch_and_rows())
def test_selected_sequences_are_those_rows(batch_rows):
    batch, rows = batch_rows
    sequences = Sequences.pack(batch)
    assert as_lists(sequences) == batch
    selected = sequences.select(torch.tensor(rows, dtype=torch.int64))
    assert as_lists(selected) == [batch[i] for i in rows]


@repeatable
@given(batch_and_rows())
def test_selected_columns_keep_values_beside_their_tokens(batch_rows):
    batch, rows = batch_rows
    sequences = Sequences.pack(batch)
    response_tokens = sum(len(answer) for _, answer in batch)
    # every array another multiple of the token's place, so that a mixed-up field or row shows
    place = torch.arange(response_tokens)
    arrays = {name: place * (k + 1) for k, name in enumerate(NAMES)}
    whole = Columns(sequences).with_tokens(**arrays).with_rows(scores=torch.arange(len(batch)) * 0.5)

    selected = whole.select(torch.tensor(rows, dtype=torch.int64))

    starts = [sum(len(answer) for _, answer in batch[:i]) for i in range(len(batch))]
    expected = [p for i in rows for p in range(starts[i], starts[i] + len(batch[i][1]))]
    assert len(selected) == len(rows)
    assert as_lists(selected.sequences) == [batch[i] for i in rows]
    assert selected["scores"].tolist() == [i * 0.5 for i in rows]
    for k, name in enumerate(NAMES):
        assert selected[name].tolist() == [p * (k + 1) for p in expected]


@repeatable
@given(batches, st.data())
def test_parts_are_joined_to_the_whole(batch, data):
    whole = made(batch)
    cut = data.draw(st.integers(0, len(batch)))
    parts = [whole.select(torch.arange(*ends)) for ends in ((0, cut), (cut, len(batch)))]
    joined = Columns.join(parts)
    assert as_lists(joined.sequences) == batch
    assert all(torch.equal(joined[name], whole[name]) for name in ("values", "scores"))


def made(batch: list) -> Columns:
    columns = Columns(Sequences.pack(batch))
    count = int(columns.lengths.sum())
    return columns.with_tokens(values=torch.arange(count) / 4).with_rows(scores=torch.arange(len(batch)) / 2)


def test_joined_parts_have_the_columns_that_all_have():
    """A replayed episode may lack what this step's has."""
    one = made([([1], [2, 3])])
    other = Columns(one.sequences).with_tokens(values=torch.ones(2))
    joined = Columns.join([one, other])
    assert joined["values"].tolist() == [0.0, 0.25, 1.0, 1.0]
    assert "scores" not in joined


def test_a_column_that_is_missing_or_has_another_shape_is_named():
    columns = made([([1], [2, 3]), ([1, 2], [4])])
    with pytest.raises(MissingColumn, match=r"there is no column 'rewards'; columns: values, scores"):
        columns["rewards"]
    with pytest.raises(MissingColumn, match="columns: none"):
        Columns(columns.sequences)["rewards"]
    with pytest.raises(
        ValueError, match=r"'values' has shape \(2,\); it needs one entry for each of 3 tokens"
    ):
        columns.with_tokens(values=torch.ones(2))
    with pytest.raises(ValueError, match=r"'scores' has shape \(3,\); .* each of 2 sequences"):
        columns.with_rows(scores=torch.ones(3))


def test_a_replaced_column_leaves_the_others_and_the_old_as_they_are():
    before = made([([1], [2, 3])])
    after = before.with_tokens(values=torch.zeros(2))
    assert before["values"].tolist() == [0.0, 0.25]
    assert after["values"].tolist() == [0.0, 0.0]
    assert torch.equal(after["scores"], before["scores"])


def masked(counts: list[int]) -> Kept:
    """The others kept with token i are 10 i, 10 i + 1, ..."""
    others = [10 * i + k for i, count in enumerate(counts) for k in range(count)]
    return Kept(torch.tensor(counts, dtype=torch.int32), torch.tensor(others, dtype=torch.int32))


def test_a_sampling_mask_goes_with_its_tokens():
    """Through `select`, `join` with sequences that have none, and to the rows that a model's output layer reads."""
    sequences = replace(Sequences.pack([([9], [1, 2]), ([8, 8], [3])]), kept=masked([2, WHOLE, 0]))
    assert sequences.select(torch.tensor([1, 0])).kept.counts.tolist() == [0, 2, WHOLE]
    both = Sequences.join([sequences, Sequences.pack([([7], [4])])]).select(torch.tensor([2, 0]))
    assert both.kept.counts.tolist() == [WHOLE, 2, WHOLE]
    assert both.kept.tokens.tolist() == [0, 1]
    micro = MicroBatch.build(both, [1], 0)
    assert micro.kept.tolist() == [[1, 0, 1], [WHOLE] * 3]
    assert MicroBatch.build(both, [0], 0).kept.tolist() == [[WHOLE]]
    assert MicroBatch.build(both, [], 0).kept.shape[0] == 0
    assert Sequences.join([Sequences.pack([([7], [4])])]).kept is None


@st.composite
def batch_with_context(draw) -> tuple[list, list[list[bool]]]:
    """A batch, and which tokens after each prompt were sampled: at least one is, the first of them."""
    batch = draw(batches)
    flags = [
        [True, *draw(st.lists(st.booleans(), min_size=len(a) - 1, max_size=len(a) - 1))] for _, a in batch
    ]
    return batch, flags


def with_context(batch: list, flags: list[list[bool]]) -> Sequences:
    return replace(Sequences.pack(batch), sampled=torch.tensor([flag for row in flags for flag in row]))


@repeatable
@given(batch_with_context(), st.data())
def test_context_tokens_are_in_sequences_and_in_no_column(batch_flags, data):
    """Every column is as of a batch without the context tokens, through `select` and `join` in any order, and the rows
    of a model's output that are read are those of sampled tokens."""
    batch, flags = batch_flags
    count = sum(sum(row) for row in flags)
    whole = Columns(with_context(batch, flags)).with_tokens(values=torch.arange(count) / 4)
    alone = [
        (p, [t for t, flag in zip(a, row, strict=True) if flag])
        for (p, a), row in zip(batch, flags, strict=True)
    ]
    compact = Columns(Sequences.pack(alone)).with_tokens(values=torch.arange(count) / 4)
    rows = data.draw(st.lists(st.integers(0, len(batch) - 1), min_size=1, max_size=8))
    cut = data.draw(st.integers(0, len(rows)))
    parts = [torch.tensor(part, dtype=torch.int64) for part in (rows[:cut], rows[cut:])]

    joined = Columns.join([whole.select(part) for part in parts])

    assert as_lists(joined.sequences) == [batch[i] for i in rows]
    assert joined.sequences.sampled.tolist() == [flag for i in rows for flag in flags[i]]
    expected = compact.select(torch.tensor(rows))
    assert torch.equal(joined.lengths, expected.lengths)
    assert torch.equal(joined["values"], expected["values"])
    for packed in (False, True):
        micro = MicroBatch.build(joined.sequences, range(len(rows)), 0, packed=packed)
        assert micro.targets.tolist() == [token for i in rows for token in alone[i][1]]
        assert torch.equal(micro.response_index, torch.arange(len(micro.targets)))


def test_sequences_without_context_tokens_join_those_that_have_some():
    some = with_context([([9], [1, 2, 3])], [[True, False, True]])
    joined = Sequences.join([Sequences.pack([([7], [4, 5])]), some])
    assert joined.sampled.tolist() == [True, True, True, False, True]
    assert joined.response_lengths.tolist() == [2, 2]


def test_a_response_aligned_array_is_filled_at_context_tokens():
    some = with_context([([9], [1, 2, 3])], [[True, False, True]])
    assert some.after_prompts(torch.tensor([0.5, 1.5])).tolist() == [0.5, 0.0, 1.5]
    assert some.after_prompts(torch.tensor([5, 6], dtype=torch.int32), -1).tolist() == [5, -1, 6]
    values = torch.ones(2)
    assert Sequences.pack([([7], [4, 5])]).after_prompts(values) is values
