"""Packed sequences and experience: taking rows out gives what lists of lists would give."""

from dataclasses import fields

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_trainer.records import Experience, Sequences, ragged_index

repeatable = settings(derandomize=True, deadline=None)
tokens = st.lists(st.integers(0, 50), min_size=1, max_size=6)
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
def test_selected_experience_keeps_values_beside_their_tokens(batch_rows):
    batch, rows = batch_rows
    sequences = Sequences.pack(batch)
    response_tokens = sum(len(answer) for _, answer in batch)
    # every array another multiple of the token's place, so that a mixed-up field or row shows
    place = torch.arange(response_tokens)
    aligned = [f.name for f in fields(Experience) if f.name not in ("sequences", "scores")]
    arrays = {name: place * (k + 1) for k, name in enumerate(aligned)}
    experience = Experience(sequences=sequences, scores=torch.arange(len(batch)) * 0.5, **arrays)

    selected = experience.select(torch.tensor(rows, dtype=torch.int64))

    starts = [sum(len(answer) for _, answer in batch[:i]) for i in range(len(batch))]
    expected = [p for i in rows for p in range(starts[i], starts[i] + len(batch[i][1]))]
    assert len(selected) == len(rows)
    assert as_lists(selected.sequences) == [batch[i] for i in rows]
    assert selected.scores.tolist() == [i * 0.5 for i in rows]
    for k, name in enumerate(aligned):
        assert getattr(selected, name).tolist() == [p * (k + 1) for p in expected]
