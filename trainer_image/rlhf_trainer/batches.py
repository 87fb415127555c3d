"""Micro-batches: which rows go together, how they are padded, and what is read from a model's output."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .maths.entropy import entropy
from .records import Sequences, ragged_index

CHUNK_ELEMENTS = 256 * 152_000
"""Logits whose log-softmax is computed at once, as float32: 156 MB, 256 tokens of a vocabulary of 152,000."""


def plan(lengths: Sequence[int], ranks: int, token_budget: int, group: int = 1) -> list[list[list[int]]]:
    """Per rank a list of micro-batches, each a list of row indices; deterministic.

    Every row appears once. `group` consecutive rows (2i and 2i + 1 for pairs) stay together. All ranks get
    the same number of micro-batches, because ZeRO-3 gathers weights in lockstep; a rank that has no more rows
    gets empty lists. The padded size rows x longest of a micro-batch is at most `token_budget`, unless it is
    a single group. Ranks differ by at most one group's tokens. Raises ValueError where `group` does not
    divide the rows.
    """
    if len(lengths) % group:
        raise ValueError(f"{len(lengths)} rows cannot be split into groups of {group}")
    groups = [range(i, i + group) for i in range(0, len(lengths), group)]
    longest = [max(lengths[r] for r in rows) for rows in groups]
    # Longest first: similar lengths meet in a micro-batch, and the last groups dealt even out the ranks.
    order = sorted(range(len(groups)), key=lambda g: (-longest[g], g))

    loads = [0] * ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for g in order:
        rank = loads.index(min(loads))
        dealt[rank].append(g)
        loads[rank] += sum(lengths[r] for r in groups[g])

    batches: list[list[list[int]]] = [[] for _ in range(ranks)]
    for mine, batch in zip(dealt, batches, strict=True):
        for g in mine:
            if batch and (len(batch[-1]) + 1) * group * longest[batch[-1][0]] <= token_budget:
                batch[-1].append(g)
            else:
                batch.append([g])

    count = max(len(batch) for batch in batches)
    for batch in batches:
        batch += [[] for _ in range(count - len(batch))]
    return [[[r for g in micro for r in groups[g]] for micro in batch] for batch in batches]


@dataclass(frozen=True)
class MicroBatch:
    """n rows of `Sequences`, right-padded to T columns, and where their A_mb answer tokens lie.

    On the model's device: int64 `input_ids`, `attention_mask`, `position_ids` [n, T]; `response_row` and
    `response_column` [A_mb], the place in [n, T] of every answer token, end to end in the order of the rows. On
    the CPU, to index packed arrays: int64 `rows` [n], and `response_index` [A_mb], the place of the same tokens
    in response-aligned arrays of all the sequences. `pad_token_id` is no row's last token, so that a
    sequence-classification head, which pools at the last token that is not padding, pools at the right one.

    Without rows (n = 0, A_mb = 0) the input still holds one token of the first sequence, so that the forward
    pass happens; everything read from its output is empty.
    """

    rows: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    response_row: Tensor
    response_column: Tensor
    response_index: Tensor
    pad_token_id: int

    @classmethod
    def build(
        cls, sequences: Sequences, rows: Sequence[int], pad_token_id: int, device: torch.device | str = "cpu"
    ) -> Self:
        """The micro-batch of `rows`; `pad_token_id` is used where no row ends in it."""
        index = torch.tensor(rows, dtype=torch.int64)
        picked = sequences.select(index)
        tokens, lengths = (
            (picked.tokens, picked.lengths) if rows else (sequences.tokens[:1], torch.ones(1).long())
        )
        ends = set(tokens[lengths.cumsum(0) - 1].tolist())
        pad = next(t for t in (pad_token_id, *range(len(ends) + 1)) if t not in ends)

        columns = torch.arange(int(lengths.max()))
        mask = columns < lengths[:, None]
        input_ids = torch.full(mask.shape, pad, dtype=torch.int64)
        input_ids[mask] = tokens
        return cls(
            rows=index,
            input_ids=input_ids.to(device),
            attention_mask=mask.to(device, torch.int64),
            position_ids=columns.expand(mask.shape).to(device),
            response_row=torch.repeat_interleave(torch.arange(len(index)), picked.response_lengths).to(
                device
            ),
            response_column=ragged_index(picked.prompt_lengths, picked.response_lengths).to(device),
            response_index=sequences.response_index(index),
            pad_token_id=pad,
        )


OutputFn = Callable[[Tensor, MicroBatch], Tensor]
"""(logits, micro-batch) -> what is wanted of them, packed."""
Loss = Callable[[Tensor, MicroBatch], tuple[Tensor, Mapping[str, Tensor]]]
"""(what was read, micro-batch) -> a scalar and named scalars, weighted so that their sums over all micro-batches of
all ranks are the loss and the statistics."""


def response_logprobs(logits: Tensor, micro: MicroBatch, temperature: float = 1.0) -> Tensor:
    """Log-probability in nats of every answer token, log softmax(logits / temperature) at the column before
    it.

    logits [n, T, V] of any float dtype -> float32 [A_mb]. Computed in float32 in chunks of at most
    CHUNK_ELEMENTS, which are computed again for the backward pass where they are several.
    """
    targets = micro.input_ids[micro.response_row, micro.response_column]
    # One indexing for all chunks: its backward pass writes a gradient of the size of the logits only once.
    selected = logits[micro.response_row, micro.response_column - 1]

    def of(chunk: Tensor, target: Tensor) -> Tensor:
        logprobs = torch.log_softmax(chunk.float() / temperature, dim=-1)
        return logprobs.gather(-1, target[:, None]).squeeze(-1)

    return _in_chunks(of, selected, targets)


def response_logprobs_and_entropy(
    logits: Tensor, micro: MicroBatch, temperature: float = 1.0, *, differentiable: bool = False
) -> Tensor:
    """`response_logprobs`, and beside each the entropy in nats of the distribution that its token was drawn from.

    logits [n, T, V] of any float dtype -> float32 [A_mb, 2]. The entropy has a gradient only where `differentiable`.
    """
    targets = micro.input_ids[micro.response_row, micro.response_column]
    selected = logits[micro.response_row, micro.response_column - 1]

    def of(chunk: Tensor, target: Tensor) -> Tensor:
        logprobs = torch.log_softmax(chunk.float() / temperature, dim=-1)
        with torch.set_grad_enabled(differentiable and torch.is_grad_enabled()):
            of_rows = entropy(logprobs)
        return torch.stack([logprobs.gather(-1, target[:, None]).squeeze(-1), of_rows], dim=-1)

    return _in_chunks(of, selected, targets)


def _in_chunks(of: Callable[[Tensor, Tensor], Tensor], selected: Tensor, targets: Tensor) -> Tensor:
    """`of` rows of logits, as many at a time as CHUNK_ELEMENTS bounds. Where one chunk is not enough, each is computed
    again for the backward pass instead of being kept."""
    rows = max(1, CHUNK_ELEMENTS // selected.shape[-1])
    if len(selected) <= rows:
        return of(selected, targets)
    pairs = zip(selected.split(rows), targets.split(rows), strict=True)
    if not selected.requires_grad:
        return torch.cat([of(chunk, target) for chunk, target in pairs])
    return torch.cat([checkpoint(of, *pair, use_reentrant=False, preserve_rng_state=False) for pair in pairs])


def response_values(logits: Tensor, micro: MicroBatch) -> Tensor:
    """A critic's value of the state before each answer token (the column before it).

    logits [n, T, 1] -> float32 [A_mb], in units of reward.
    """
    return logits[micro.response_row, micro.response_column - 1, 0].float()


def token_scores(logits: Tensor, micro: MicroBatch) -> Tensor:
    """A fine-grained reward model's score of each response token, at the token's own column.

    logits [n, T, 1] -> float32 [A_mb], in units of reward.
    """
    return logits[micro.response_row, micro.response_column, 0].float()


def sequence_scores(logits: Tensor, micro: MicroBatch) -> Tensor:
    """A reward model's score of each row: logits [n, 1], pooled by the model -> float32 [n]."""
    return logits[: len(micro.rows), 0].float()
