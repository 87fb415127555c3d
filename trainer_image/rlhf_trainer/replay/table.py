"""Serialization of an episode to a Parquet table: one row per response, readable by people, bitwise exact."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional as F

from rlhf_api.graph import REWARD, reward_column
from rlhf_api.host.parquet_pages import check_inflation

from ..maths.kl import token_kl
from ..tensors.columns import Columns
from ..tensors.packed import ragged_index
from ..tensors.records import Sequences
from ..tensors.sampling_mask import WHOLE, Kept
from . import expert_column
from .wide_columns import join_columns, split_column

FORMAT = b"1"
_ORDER = ("sampled_logprobs", "logprobs", "reference_logprobs", "values", "advantages", "returns")
"""Token columns that come first, in this order; those of other algorithms follow by name."""
_GROUP_TOKENS = 1 << 19
"""Response tokens of a row group: Parquet's writer holds all of one in memory."""
_EXPERTS = 32
"""Experts whose bytes count there as a token."""
_OWN_ROWS = ("scores", "finished", "position")
"""Row columns that are stored among the fixed ones; `scores` as `reward`."""
_NO_VERSION = -1
"""Weight version of context tokens."""

Texts = Callable[[Sequences], tuple[list[str], list[str]]]
"""Decodes sequences to (prompts, responses) as text."""


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def _list(kind: pa.DataType, *, large: bool = False) -> pa.DataType:
    """`large`: with offsets of 64 bits, for 2^31 and more values in all rows together."""
    return (pa.large_list if large else pa.list_)(pa.field("element", kind, nullable=False))


_FIXED = (
    _column("episode", pa.int64()),
    _column("prompt_id", pa.string()),
    _column("prompt", pa.string()),
    _column("response", pa.string()),
    _column("reward", pa.float32(), nullable=True),
    _column("kl", pa.float32(), nullable=True),
    _column("weight_version", pa.int64()),
    _column("finished", pa.bool_()),
    _column("trained", pa.int64(), nullable=True),
    _column("position", pa.int64()),
    _column("prompt_tokens", _list(pa.int32())),
    _column("response_tokens", _list(pa.int32())),
)
"""Columns of every episode. `kl` is the mean of logprobs - reference_logprobs, in nats, null without a reference;
`weight_version` the newest one that sampled the response; `finished` is false if the length limit cut it off; `trained`
is the step that trained on it, null before; `position` is the prompt's position in the run's prompt order. The
algorithm's own columns follow: lists with one float per token, and floats; `kept_counts` and `kept_tokens` if tokens
have a sampling mask, see `sampling_mask.Kept`; `sampled` if there are context tokens, at which floats are 0 and the
version is _NO_VERSION; `experts`, see `expert_column`, where they are replayed; `weight_versions` is the last."""
_VERSIONS = _column("weight_versions", _list(pa.int64()))
_FLOATS = _list(pa.float32())
_KEPT = (_column("kept_counts", _list(pa.int32())), _column("kept_tokens", _list(pa.int32(), large=True)))
_FLAGS = {name: _column(name, _list(pa.bool_())) for name in ("sampled", "branches")}


@dataclass(frozen=True)
class Episode:
    """The responses to one step's prompts: N rows of `columns`, with the id of each one's prompt; `trained` is the step
    that trained on them, None before."""

    number: int
    prompt_ids: tuple[str, ...]
    columns: Columns
    trained: int | None = None
    rewards: Mapping[str, Tensor] = field(default_factory=dict)
    """Each reward's scores, before its weight, by its name: float32 [N], NaN for none. On rank 0 alone. In the table
    they are columns of rows, as which they also come back."""

    def __len__(self) -> int:
        return len(self.columns)

    def select(self, rows: Tensor) -> "Episode":
        """The responses `rows` (int64 [n]), in that order."""
        ids = tuple(self.prompt_ids[i] for i in rows.tolist())
        rewards = {name: scores[rows] for name, scores in self.rewards.items()}
        return replace(self, prompt_ids=ids, columns=self.columns.select(rows), rewards=rewards)


def token_columns(columns: Columns) -> list[str]:
    """Names of the float columns with one number per token, in the order of the table."""
    own = sorted(name for name in columns.tokens if name not in (*_ORDER, "versions", "mask"))
    return [*(name for name in _ORDER if name in columns.tokens), *own]


def encode(episode: Episode, texts: Texts) -> bytes:
    """Serializes an episode to Parquet, deterministically."""
    routing = episode.columns.sequences.routing
    tokens = len(episode.columns["versions"]) + (0 if routing is None else routing.numel() // _EXPERTS)
    out = pa.BufferOutputStream()
    pq.write_table(
        tabulate(episode, texts),
        out,
        row_group_size=max(1, _GROUP_TOKENS * len(episode) // tokens),
        compression="zstd",
        use_dictionary=False,
    )
    data: bytes = out.getvalue().to_pybytes()
    return data


def tabulate(episode: Episode, texts: Texts) -> pa.Table:
    """An episode as the table that `encode` writes."""
    columns, sequences = episode.columns, episode.columns.sequences
    prompts, responses = texts(sequences)
    lengths = sequences.after_lengths
    # Split, not indexed: an index takes 8 bytes a token, of which a step may have tens of millions.
    pairs = torch.stack((sequences.prompt_lengths, lengths), dim=1).flatten().tolist()
    parts = sequences.tokens.int().split(pairs)
    prompt_tokens, response_tokens = torch.cat(parts[0::2]), torch.cat(parts[1::2])
    count, versions = len(episode), columns["versions"]
    newest = [int(each.max()) for each in versions.split(sequences.response_lengths.tolist())]
    fixed = [
        pa.array([episode.number] * count, pa.int64()),
        pa.array(episode.prompt_ids, pa.string()),
        _strings(prompts),
        _strings(responses),
        pa.array(_numpy(columns["scores"])) if "scores" in columns else pa.nulls(count, pa.float32()),
        pa.array(_kl(columns)) if "reference_logprobs" in columns else pa.nulls(count, pa.float32()),
        pa.array(newest, pa.int64()),
        pa.array(_numpy(columns["finished"])),
        pa.array([episode.trained] * count, pa.int64()),
        pa.array(_numpy(columns["position"])),
        _ragged(prompt_tokens, sequences.prompt_lengths),
        _ragged(response_tokens, lengths),
    ]
    floats = dict[str, Tensor]()
    for name in token_columns(columns):
        floats |= split_column(name, columns[name].float())
    if columns.mask is not None:
        floats["mask"] = columns.mask.float()
    tokens = {name: _ragged(sequences.after_prompts(each), lengths) for name, each in floats.items()}
    rows = {name: pa.array(_numpy(columns[name].float())) for name in columns.rows if name not in _OWN_ROWS}
    rows |= {reward_column(name): pa.array(_numpy(scores)) for name, scores in episode.rewards.items()}
    masks = _kept_columns(sequences)
    flags = {name: getattr(sequences, name) for name in _FLAGS}
    flags = {name: _ragged(each, lengths) for name, each in flags.items() if each is not None}
    fields = [
        *_FIXED,
        *(_column(n, _FLOATS) for n in tokens),
        *(_column(n, pa.float32()) for n in rows),
        *(_KEPT if masks else ()),
        *(_FLAGS[name] for name in flags),
    ]
    experts, metadata = list[pa.Array](), {b"rlhf_episode": FORMAT}
    if sequences.routing is not None:
        column, more = expert_column.encode_routing(sequences.routing, sequences)
        experts, metadata = [column], metadata | more
        fields.append(expert_column.FIELD)
    schema = pa.schema([*fields, _VERSIONS], metadata=metadata)
    whole_versions = _ragged(sequences.after_prompts(versions, _NO_VERSION), lengths)
    arrays = [*fixed, *tokens.values(), *rows.values(), *masks, *flags.values(), *experts, whole_versions]
    return pa.Table.from_arrays(arrays, schema=schema)


def decode(data: bytes) -> Episode:
    """Inverse of `encode`. Raises ValueError for bytes that are no episode or one of another format, or would decode to
    far more than they are."""
    try:
        # On this thread: an Arrow thread that still holds a Python buffer when Python exits aborts the process.
        with pq.ParquetFile(io.BytesIO(data), pre_buffer=False) as file:
            schema = file.schema_arrow
            if (schema.metadata or {}).get(b"rlhf_episode") != FORMAT or not _has_known_columns(schema):
                raise ValueError(f"it has not the columns of format {FORMAT.decode()}: {schema.names}")
            check_inflation(file.metadata, io.BytesIO(data), len(data))
            table = file.read(use_threads=False).combine_chunks()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ValueError(f"not an episode's Parquet table: {error}") from error
    if not table.num_rows:
        raise ValueError("an episode has at least one response; the table has no rows")
    columns = {name: table.column(name).chunk(0) for name in table.schema.names}
    prompt_tokens, prompt_lengths = _packed(columns["prompt_tokens"])
    response_tokens, response_lengths = _packed(columns["response_tokens"])
    known = {f.name for f in (*_FIXED, *_KEPT, *_FLAGS.values(), expert_column.FIELD, _VERSIONS)}
    own = [field for field in table.schema if field.name not in known]
    flags = [field for name, field in _FLAGS.items() if name in columns]
    aligned = {
        f.name: _packed(columns[f.name]) for f in (*own, *flags, _VERSIONS) if pa.types.is_list(f.type)
    }
    if any(not torch.equal(lengths, response_lengths) for _, lengths in aligned.values()):
        raise ValueError(
            "each array of a response has one entry for each of its tokens; this table's have not"
        )
    lengths = prompt_lengths + response_lengths
    starts = lengths.cumsum(0) - lengths
    tokens = torch.empty(int(lengths.sum()), dtype=torch.int64)
    tokens[ragged_index(starts, prompt_lengths)] = prompt_tokens.long()
    tokens[ragged_index(starts + prompt_lengths, response_lengths)] = response_tokens.long()
    sampled, branches = (aligned.pop(name, (None, None))[0] for name in _FLAGS)
    routing = columns.pop(expert_column.FIELD.name, None)
    if routing is not None:
        routing = expert_column.decode_routing(routing, table.schema.metadata, lengths)
    sequences = Sequences(
        tokens, lengths, prompt_lengths, sampled=sampled, branches=branches, routing=routing
    )
    if bool((sequences.response_lengths < 1).any()):
        raise ValueError("a token of each response was sampled; this table has responses without any")
    token_values = {
        name: values if sampled is None else values[sampled] for name, (values, _) in aligned.items()
    }
    token_values = join_columns(token_values)
    token_values["versions"] = token_values.pop("weight_versions")
    if "mask" in token_values:
        token_values["mask"] = token_values["mask"].bool()
    row_values = {name: _tensor(columns[name]) for name in ("finished", "position")}
    if not columns["reward"].null_count:
        row_values["scores"] = _tensor(columns["reward"])
    row_values |= {f.name: _tensor(columns[f.name]) for f in own if f.name not in aligned}
    if {"turns", "environment_reward"} <= row_values.keys():
        row_values["turns"] = row_values["turns"].long()
    rewards = {
        name.removeprefix(REWARD): scores for name, scores in row_values.items() if name.startswith(REWARD)
    }
    return Episode(
        number=columns["episode"][0].as_py(),
        prompt_ids=tuple(columns["prompt_id"].to_pylist()),
        columns=Columns(
            replace(sequences, kept=_kept_of(columns, response_lengths, sampled)), token_values, row_values
        ),
        trained=columns["trained"][0].as_py(),
        rewards=rewards,
    )


def _has_known_columns(schema: pa.Schema) -> bool:
    """True if the fixed columns have their types, and all others except those of the mask and of flags are floats."""
    masks = _KEPT if any(f.name in schema.names for f in _KEPT) else ()
    own = (*_FLAGS.values(), expert_column.FIELD)
    fixed = (*_FIXED, *masks, *(field for field in own if field.name in schema.names), _VERSIONS)
    names = {field.name for field in fixed}
    return all(f.name in schema.names and schema.field(f.name).type == f.type for f in fixed) and all(
        field.type in (_FLOATS, pa.float32()) for field in schema if field.name not in names
    )


def _kept_columns(sequences: Sequences) -> list[pa.ListArray | pa.LargeListArray]:
    """The sampling mask: per response, the counts of its tokens and all kept tokens, end to end."""
    if sequences.kept is None:
        return []
    counts, sizes = sequences.kept.counts, sequences.kept.sizes
    ends = F.pad(sizes.cumsum(0), (1, 0))
    starts, lengths = sequences.response_starts, sequences.response_lengths
    sums = ends[starts + lengths] - ends[starts]
    whole_counts = _ragged(sequences.after_prompts(counts, WHOLE), sequences.after_lengths)
    return [whole_counts, _ragged(sequences.kept.tokens, sums, large=True)]


def _kept_of(columns: dict[str, pa.Array], after_lengths: Tensor, sampled: Tensor | None) -> Kept | None:
    """Inverse of `_kept_columns`. Raises ValueError where the counts do not match the tokens."""
    if "kept_counts" not in columns:
        return None
    (counts, lengths), (tokens, _) = (_packed(columns[field.name]) for field in _KEPT)
    if not torch.equal(lengths, after_lengths):
        raise ValueError("the sampling mask of a response has a count for each token; this table's has not")
    counts = counts if sampled is None else counts[sampled]
    return Kept.checked(counts, tokens, len(counts))


def _kl(columns: Columns) -> np.ndarray:
    """The mean KL of each response in nats: float32 [N]."""
    own = columns["logprobs" if "logprobs" in columns else "sampled_logprobs"]
    return _means(token_kl(own, columns["reference_logprobs"]), columns.sequences)


def _numpy(array: Tensor) -> np.ndarray:
    return array.detach().contiguous().numpy()


def _tensor(column: pa.Array) -> Tensor:
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy())


def _strings(texts: Sequence[str]) -> pa.Array:
    """Converts the strings one by one: Arrow holds the GIL while it copies a whole list, and other threads wait."""
    return pa.concat_arrays([pa.array([text], pa.string()) for text in texts])


def _ragged(flat: Tensor, lengths: Tensor, *, large: bool = False) -> pa.ListArray | pa.LargeListArray:
    offsets = np.concatenate([[0], _numpy(lengths.cumsum(0))]).astype(np.int64 if large else np.int32)
    values, kind = pa.array(_numpy(flat)), pa.LargeListArray if large else pa.ListArray
    return kind.from_arrays(pa.array(offsets), values, type=_list(values.type, large=large))


def _packed(column: pa.ListArray | pa.LargeListArray) -> tuple[Tensor, Tensor]:
    lengths = np.diff(column.offsets.to_numpy()).astype(np.int64)
    return _tensor(column.flatten()), torch.from_numpy(lengths)


def _means(response_aligned: Tensor, sequences: Sequences) -> np.ndarray:
    """Mean of each response's values: float32 [N]."""
    sums = np.add.reduceat(_numpy(response_aligned).astype(np.float64), _numpy(sequences.response_starts))
    means: np.ndarray = (sums / _numpy(sequences.response_lengths)).astype(np.float32)
    return means
