"""An episode survives as Parquet bit for bit, and whatever is no episode is an error."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.made import LENGTHS, episode, same, words

from rlhf_trainer.replay.table import SCHEMA, decode, encode


@given(
    st.integers(1, 2**40),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=6),
    st.none() | st.integers(1, 9),
)
def test_an_episode_survives_bit_for_bit(number, lengths, trained):
    made = episode(number, lengths=tuple(lengths), trained=trained)
    back = decode(encode(made, words))
    assert same(back.experience, made.experience)
    assert (back.number, back.prompt_ids, back.trained) == (made.number, made.prompt_ids, trained)
    assert torch.equal(back.positions, made.positions)
    assert torch.equal(back.finished, made.finished)


def test_odd_floats_survive():
    made = episode(1)
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45, -float("inf"), 0.1])
    made.experience.values[: len(odd)] = odd
    assert same(decode(encode(made, words)).experience, made.experience)


def test_the_same_episode_gives_the_same_bytes():
    assert encode(episode(3), words) == encode(episode(3), words)
    assert encode(decode(encode(episode(3), words)), words) == encode(episode(3), words)
    assert encode(episode(3), words) != encode(episode(3, trained=3), words)


def test_people_can_read_it():
    made = episode(2, trained=2)
    table = pq.read_table(io.BytesIO(encode(made, words)))
    assert table.schema.names == SCHEMA.names
    row = table.to_pylist()[2]
    tokens = made.experience.sequences.row(2).tolist()
    assert row["episode"] == 2
    assert row["prompt_id"] == "0/10"
    assert row["prompt"] == " ".join(map(str, tokens[:4]))
    assert row["response"] == " ".join(map(str, tokens[4:]))
    assert row["prompt_tokens"] + row["response_tokens"] == tokens
    assert row["reward"] == float(made.experience.scores[2])
    difference = made.experience.logprobs - made.experience.reference_logprobs
    assert row["kl"] == pytest.approx(float(difference[4:6].mean()), abs=1e-6)
    assert row["weight_version"] == max(row["weight_versions"])
    assert len(row["advantages"]) == LENGTHS[2][1]
    assert (row["trained"], row["finished"]) == (2, True)


def written(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def test_what_is_no_episode_is_an_error():
    table = pq.read_table(io.BytesIO(encode(episode(1), words)))
    for data, says in (
        (b"", "not an episode's Parquet table"),
        (encode(episode(1), words)[:-9], "not an episode's Parquet table"),
        (written(pa.table({"a": [1]})), "not an episode's table of format 1"),
        (written(table.drop_columns(["kl"])), "not an episode's table of format 1"),
        (written(table.slice(0, 0)), "has no rows"),
        (
            written(table.set_column(14, SCHEMA.field(14), table.column("logprobs").take([1, 0, 2, 3]))),
            "one entry for each of its tokens",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            decode(data)
