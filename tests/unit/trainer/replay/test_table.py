"""An episode survives as Parquet bit for bit, and whatever is no episode is an error."""

import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.trainer.replay.made import FLAGS, LENGTHS, episode, same, with_replies, words

from rlhf_api.host import parquet_pages
from rlhf_trainer.replay.table import Episode, decode, encode
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.sampling_mask import WHOLE, Kept

NAMES = [
    *("episode", "prompt_id", "prompt", "response", "reward", "kl", "weight_version", "finished", "trained"),
    *("position", "prompt_tokens", "response_tokens"),
    *("sampled_logprobs", "logprobs", "reference_logprobs", "values", "advantages", "returns"),
    "weight_versions",
]
"""Columns of PPO's episodes: people and earlier snapshots have tables with these names in this order."""


@given(
    st.integers(1, 2**40),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=6),
    st.none() | st.integers(1, 9),
)
def test_an_episode_survives_bit_for_bit(number, lengths, trained):
    made = episode(number, lengths=tuple(lengths), trained=trained)
    back = decode(encode(made, words))
    assert same(back.columns, made.columns)
    assert (back.number, back.prompt_ids, back.trained) == (made.number, made.prompt_ids, trained)


def test_long_responses_survive_in_several_row_groups():
    """Parquet's writer holds a whole row group in memory, so a group has about 2^19 tokens."""
    made = episode(2, lengths=((1, 200_000),) * 5)
    data = encode(made, lambda sequences: (["p"] * len(sequences), ["r"] * len(sequences)))
    assert pq.ParquetFile(io.BytesIO(data)).num_row_groups == 3
    assert same(decode(data).columns, made.columns)


def test_odd_floats_survive():
    made = episode(1)
    odd = torch.tensor([float("nan"), -0.0, float("inf"), 1e-45, -float("inf"), 0.1])
    made.columns["values"][: len(odd)] = odd
    assert same(decode(encode(made, words)).columns, made.columns)


def test_the_same_episode_gives_the_same_bytes():
    assert encode(episode(3), words) == encode(episode(3), words)
    assert encode(decode(encode(episode(3), words)), words) == encode(episode(3), words)
    assert encode(episode(3), words) != encode(episode(3, trained=3), words)


def test_columns_of_other_algorithms_survive_too():
    """Without a critic or a reference; with a mask and numbers of whole responses; before it was scored."""
    made = episode(4)
    lengths = made.columns.lengths
    selected = {name: made.columns[name] for name in ("sampled_logprobs", "advantages", "versions")}
    columns = replace(made.columns, tokens=selected).with_rows(response_rewards=torch.randn(len(lengths)))
    columns = columns.with_tokens(
        mask=made.columns["finished"].repeat_interleave(lengths), surprise=torch.randn(int(lengths.sum()))
    )
    assert same(decode(encode(replace(made, columns=columns), words)).columns, columns)
    row = pq.read_table(io.BytesIO(encode(replace(made, columns=columns), words))).to_pylist()[1]
    assert row["kl"] is None, "there is no reference"
    assert (row["reward"], row["mask"]) == (float(columns["scores"][1]), [0.0])
    rows = {name: columns[name] for name in ("position", "finished")}
    unscored = Columns(columns.sequences, columns.tokens, rows)
    data = encode(replace(made, columns=unscored), words)
    assert pq.read_table(io.BytesIO(data)).to_pylist()[0]["reward"] is None
    assert same(decode(data).columns, unscored)


def test_several_numbers_a_token_survive_each_in_a_column_of_its_own():
    made = episode(4)
    top = torch.randn(int(made.columns.lengths.sum()), 12)
    columns = made.columns.with_tokens(reference_top=top)
    data = encode(replace(made, columns=columns), words)
    assert same(decode(data).columns, columns)
    assert (
        pq.read_table(io.BytesIO(data)).column("reference_top_11").to_pylist()[0]
        == top[:, 11].tolist()[: int(columns.lengths[0])]
    )


def test_an_episode_of_the_first_release_is_read():
    """Its table has the six columns of PPO, and was written before there were other algorithms."""
    data = (Path(__file__).parent / "episode_format_1.parquet").read_bytes()
    read, decoded = pq.read_table(io.BytesIO(data)), decode(data)
    assert read.schema.names == NAMES
    assert (decoded.number, decoded.trained) == (2, 2)
    assert decoded.prompt_ids == tuple(read.column("prompt_id").to_pylist())
    lengths = decoded.columns.lengths.tolist()
    for name in (*NAMES[12:18], "weight_versions"):
        column = decoded.columns["versions" if name == "weight_versions" else name]
        assert [part.tolist() for part in column.split(lengths)] == read.column(name).to_pylist(), name
    for name, column_name in (("reward", "scores"), ("finished", "finished"), ("position", "position")):
        assert decoded.columns[column_name].tolist() == read.column(name).to_pylist(), name
    tokens = zip(*(read.column(f"{part}_tokens").to_pylist() for part in ("prompt", "response")), strict=True)
    assert [decoded.columns.sequences.row(i).tolist() for i in range(4)] == [p + r for p, r in tokens]
    again = pq.read_table(io.BytesIO(encode(decoded, words)))
    assert again.to_pylist() == read.to_pylist(), "and written as it was"


def test_people_can_read_it():
    made = episode(2, trained=2)
    table = pq.read_table(io.BytesIO(encode(made, words)))
    assert table.schema.names == NAMES
    row = table.to_pylist()[2]
    tokens = made.columns.sequences.row(2).tolist()
    assert row["episode"] == 2
    assert row["prompt_id"] == "0/10"
    assert row["prompt"] == " ".join(map(str, tokens[:4]))
    assert row["response"] == " ".join(map(str, tokens[4:]))
    assert row["prompt_tokens"] + row["response_tokens"] == tokens
    assert row["reward"] == float(made.columns["scores"][2])
    difference = made.columns["logprobs"] - made.columns["reference_logprobs"]
    assert row["kl"] == pytest.approx(float(difference[4:6].mean()), abs=1e-6)
    assert row["weight_version"] == max(row["weight_versions"])
    assert len(row["advantages"]) == LENGTHS[2][1]
    assert (row["trained"], row["finished"]) == (2, True)


def written(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", use_dictionary=False)
    return out.getvalue()


def test_what_is_no_episode_is_an_error():
    table = pq.read_table(io.BytesIO(encode(episode(1), words)))
    for data, says in (
        (b"", "not an episode's Parquet table"),
        (encode(episode(1), words)[:-9], "not an episode's Parquet table"),
        (written(pa.table({"a": [1]})), "not the columns of format 1"),
        (written(table.drop_columns(["kl"])), "not the columns of format 1"),
        (written(table.slice(0, 0)), "has no rows"),
        (
            written(table.set_column(14, table.schema.field(14), table.column(13).take([1, 0, 2, 3]))),
            "one entry for each of its tokens",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            decode(data)


def test_an_episode_that_decodes_to_far_more_than_its_file_is_an_error(monkeypatch):
    """That of a bucket may be anybody's. test_parquet_pages.py has the ways in which a file may inflate."""
    monkeypatch.setattr(parquet_pages, "SMALL", 1 << 20)
    table = pq.read_table(io.BytesIO(encode(episode(1), words)))
    place = table.schema.get_field_index("prompt_tokens")
    kind = table.schema.field(place).type
    data = written(table.set_column(place, table.schema.field(place), pa.array([[0] * 99_999] * 4, kind)))
    assert len(data) < 20_000
    with pytest.raises(ValueError, match="episode's Parquet table: would take more than 1 MiB"):
        decode(data)


def test_a_sampling_mask_survives():
    made = episode(2)
    counts = torch.tensor([2, 0, WHOLE, 1, *[0] * 6, 3], dtype=torch.int32)
    mask = Kept(counts, torch.arange(6, dtype=torch.int32))
    made = replace(made, columns=replace(made.columns, sequences=replace(made.columns.sequences, kept=mask)))
    data = encode(made, words)
    back = decode(data)
    assert same(back.columns, made.columns)
    assert torch.equal(back.columns.sequences.kept.counts, counts)
    assert torch.equal(back.columns.sequences.kept.tokens, mask.tokens)
    rows = pq.read_table(io.BytesIO(data)).to_pylist()
    assert [row["kept_tokens"] for row in rows] == [[0, 1], [2], [], [3, 4, 5]]
    assert encode(back, words) == data

    table = pq.read_table(io.BytesIO(data))
    kind = table.schema.field("kept_tokens").type
    assert pa.types.is_large_list(kind), "a step's masks may have more tokens than 2^31"
    place = table.schema.get_field_index("kept_counts")
    wrong = pa.array([[1] * len(row["kept_counts"]) for row in rows], table.schema.field(place).type)
    with pytest.raises(ValueError, match="as many token ids as they add up to"):
        decode(written(table.set_column(place, table.schema.field(place), wrong)))


def test_an_episode_of_several_turns_survives_bit_for_bit():
    """With its replies, its mask of training and its sampling mask."""
    made = with_replies(episode(3))
    count = int(made.columns.lengths.sum())
    counts = torch.tensor([2, WHOLE, *[1] * (count - 2)], dtype=torch.int32)
    kept_tokens = torch.arange(count, dtype=torch.int32)
    columns = replace(made.columns, sequences=replace(made.columns.sequences, kept=Kept(counts, kept_tokens)))
    made = replace(made, columns=columns.with_tokens(mask=torch.arange(count) % 2 == 0))
    back = decode(encode(made, words))
    assert same(back.columns, made.columns)
    mask = back.columns.sequences.kept
    assert (mask.counts.tolist(), mask.tokens.tolist()) == (counts.tolist(), kept_tokens.tolist())
    assert encode(back, words) == encode(made, words)


def test_people_can_tell_replies_from_what_was_sampled():
    """Each list has an entry for each token of the response, so that they can be read side by side."""
    made = with_replies(episode(2))
    row = pq.read_table(io.BytesIO(encode(made, words))).to_pylist()[3]
    assert row["sampled"] == list(FLAGS[3])
    assert len(row["response_tokens"]) == len(row["sampled_logprobs"]) == 5
    own = made.columns.select(torch.tensor([3]))
    for name, filler in (("advantages", 0.0), ("weight_versions", -1)):
        values = own["versions" if name == "weight_versions" else name].tolist()
        assert [value for value, flag in zip(row[name], FLAGS[3], strict=True) if flag] == values
        assert row[name][1:3] == [filler] * 2
    assert row["weight_version"] == int(own["versions"].max())
    assert (row["turns"], row["turn_rewards"]) == (2.0, [0.0, 0.0, 0.0, 0.0, 1.0])
    assert row["kl"] == pytest.approx(float((own["logprobs"] - own["reference_logprobs"]).mean()), abs=1e-6)


def test_a_table_without_a_sampled_token_in_a_response_is_refused():
    table = pq.read_table(io.BytesIO(encode(with_replies(episode(2)), words)))
    flags = pa.array(
        [[True, False, True], [False], [True, True], [True] * 5], table.schema.field("sampled").type
    )
    at = table.schema.get_field_index("sampled")
    with pytest.raises(ValueError, match="a token of each response was sampled"):
        decode(written(table.set_column(at, table.schema.field(at), flags)))


def routed() -> Episode:
    made = episode(4)
    tokens = len(made.columns.sequences.tokens)
    routing = torch.randint(-1, 300, (tokens, 3, 2), generator=torch.Generator().manual_seed(0))
    sequences = replace(made.columns.sequences, routing=routing.to(torch.int16))
    return replace(made, columns=replace(made.columns, sequences=sequences))


def test_the_experts_of_each_token_survive():
    made = routed()
    back = decode(encode(made, words)).columns
    assert same(back, made.columns)
    assert back.sequences.routing.dtype == torch.int16
    assert torch.equal(back.select(torch.tensor([2])).sequences.routing, made.columns.sequences.routing[7:13])


@pytest.mark.parametrize(
    ("shape", "says"),
    [(b"3,3", "each token has 9 experts"), (b"", "how many a token has"), (b"0,6", "how many a token has")],
)
def test_a_table_whose_experts_have_another_shape_is_refused(shape, says):
    table = pq.read_table(io.BytesIO(encode(routed(), words)))
    out = io.BytesIO()
    metadata = {**table.schema.metadata, b"rlhf_experts": shape}
    pq.write_table(table.replace_schema_metadata(metadata), out, compression="zstd", use_dictionary=False)
    with pytest.raises(ValueError, match=says):
        decode(out.getvalue())
