"""An episode as a Parquet table: one row an answer, for people to read, and bit for bit what was trained on."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from ..maths.kl import token_kl
from ..records import Experience, Sequences, ragged_index

FORMAT = b"1"
FLOATS = ("sampled_logprobs", "logprobs", "reference_logprobs", "values", "advantages", "returns")
"""response-aligned arrays, by the names that `Experience` has for them."""

Texts = Callable[[Sequences], tuple[list[str], list[str]]]
"""The prompts and the answers of sequences as text."""


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


SCHEMA = pa.schema(
    [
        _column("episode", pa.int64()),
        _column("prompt_id", pa.string()),
        _column("prompt", pa.string()),
        _column("response", pa.string()),
        _column("reward", pa.float32()),
        _column("kl", pa.float32()),
        _column("weight_version", pa.int64()),
        _column("finished", pa.bool_()),
        _column("trained", pa.int64(), nullable=True),
        _column("position", pa.int64()),
        _column("prompt_tokens", _list(pa.int32())),
        _column("response_tokens", _list(pa.int32())),
        *(_column(name, _list(pa.float32())) for name in FLOATS),
        _column("weight_versions", _list(pa.int64())),
    ],
    metadata={b"rlhf_episode": FORMAT},
)
"""`kl` is the mean of logprobs - reference_logprobs, in nats; `weight_version` the newest one that sampled the answer;
`finished` is false where the length limit cut it off; `trained` is the step that trained on it, null before;
`position` is the prompt's place in the order in which the run takes prompts. The lists have one entry a token."""


@dataclass(frozen=True)
class Episode:
    """The answers to one step's prompts: N rows of `experience`, with the id and the place of each one's prompt.

    `positions` int64 [N], `finished` bool [N]; `trained` is the step that trained on them, None before.
    """

    number: int
    prompt_ids: tuple[str, ...]
    positions: Tensor
    finished: Tensor
    experience: Experience
    trained: int | None = None

    def __len__(self) -> int:
        return len(self.experience)


def encode(episode: Episode, texts: Texts) -> bytes:
    """The same bytes for the same episode."""
    made, sequences = episode.experience, episode.experience.sequences
    prompts, responses = texts(sequences)
    lengths, starts = sequences.response_lengths, sequences.starts
    asked = ragged_index(starts, sequences.prompt_lengths)
    answered = ragged_index(starts + sequences.prompt_lengths, lengths)
    kl = token_kl(made.logprobs, made.reference_logprobs)
    columns = {
        "episode": pa.array([episode.number] * len(episode), pa.int64()),
        "prompt_id": pa.array(episode.prompt_ids, pa.string()),
        "prompt": pa.array(prompts, pa.string()),
        "response": pa.array(responses, pa.string()),
        "reward": pa.array(_numpy(made.scores)),
        "kl": pa.array(_means(kl, sequences)),
        "weight_version": pa.array([int(v.max()) for v in made.versions.split(lengths.tolist())], pa.int64()),
        "finished": pa.array(_numpy(episode.finished)),
        "trained": pa.array([episode.trained] * len(episode), pa.int64()),
        "position": pa.array(_numpy(episode.positions)),
        "prompt_tokens": _ragged(sequences.tokens[asked].int(), sequences.prompt_lengths),
        "response_tokens": _ragged(sequences.tokens[answered].int(), lengths),
        **{name: _ragged(getattr(made, name), lengths) for name in FLOATS},
        "weight_versions": _ragged(made.versions, lengths),
    }
    table = pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", use_dictionary=False)
    return out.getvalue()


def decode(data: bytes) -> Episode:
    """Raises ValueError where the bytes are no episode, or one that another version wrote."""
    try:
        table = pq.read_table(io.BytesIO(data), use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"not an episode's Parquet table: {error}") from error
    if (table.schema.metadata or {}).get(b"rlhf_episode") != FORMAT or not table.schema.equals(SCHEMA):
        raise ValueError(f"not an episode's table of format {FORMAT.decode()}: {table.schema.names}")
    if not table.num_rows:
        raise ValueError("an episode has at least one answer; the table has no rows")
    columns = {name: table.column(name).chunk(0) for name in SCHEMA.names}
    prompt_tokens, prompt_lengths = _packed(columns["prompt_tokens"])
    response_tokens, response_lengths = _packed(columns["response_tokens"])
    aligned = {name: _packed(columns[name]) for name in (*FLOATS, "weight_versions")}
    if any(not torch.equal(lengths, response_lengths) for _, lengths in aligned.values()):
        raise ValueError(
            "each array of an answer has one entry for each of its tokens; this table's have not"
        )
    lengths = prompt_lengths + response_lengths
    starts = lengths.cumsum(0) - lengths
    tokens = torch.empty(int(lengths.sum()), dtype=torch.int64)
    tokens[ragged_index(starts, prompt_lengths)] = prompt_tokens.long()
    tokens[ragged_index(starts + prompt_lengths, response_lengths)] = response_tokens.long()
    experience = Experience(
        sequences=Sequences(tokens, lengths, prompt_lengths),
        **{name: aligned[name][0] for name in FLOATS},
        versions=aligned["weight_versions"][0],
        scores=_tensor(columns["reward"]),
    )
    return Episode(
        number=columns["episode"][0].as_py(),
        prompt_ids=tuple(columns["prompt_id"].to_pylist()),
        positions=_tensor(columns["position"]),
        finished=_tensor(columns["finished"]),
        experience=experience,
        trained=columns["trained"][0].as_py(),
    )


def _numpy(array: Tensor) -> np.ndarray:
    return array.detach().contiguous().numpy()


def _tensor(column: pa.Array) -> Tensor:
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())


def _ragged(flat: Tensor, lengths: Tensor) -> pa.ListArray:
    offsets = np.concatenate([[0], _numpy(lengths.cumsum(0))]).astype(np.int32)
    values = pa.array(_numpy(flat))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=_list(values.type))


def _packed(column: pa.ListArray) -> tuple[Tensor, Tensor]:
    lengths = np.diff(column.offsets.to_numpy()).astype(np.int64)
    return _tensor(column.flatten()), torch.from_numpy(lengths)


def _means(answer_aligned: Tensor, sequences: Sequences) -> np.ndarray:
    """The mean of each answer: float32 [N]."""
    sums = np.add.reduceat(_numpy(answer_aligned).astype(np.float64), _numpy(sequences.response_starts))
    return (sums / _numpy(sequences.response_lengths)).astype(np.float32)
