"""Micro-batches: rows grouped under a token budget, padded or packed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from .expert_rows import UNKNOWN
from .images import Images
from .packed import ragged_index, to_device
from .records import Sequences


def plan(
    lengths: Sequence[int],
    ranks: int,
    token_budget: int,
    group: int = 1,
    *,
    packed: bool = False,
    branches: Sequence[Sequence[int]] | None = None,
) -> list[list[list[int]]]:
    """Per rank a list of micro-batches, each a list of row indices; deterministic.

    Every row appears once. `group` consecutive rows (2i and 2i + 1 for pairs) stay together. All ranks get
    the same number of micro-batches, because ZeRO-3 gathers weights in lockstep; a rank that has no more rows
    gets empty lists. The size of a micro-batch, its padded one (rows x longest) or where `packed` its tokens, is at
    most `token_budget`, unless it is a single group. Ranks differ by at most one group's tokens. Raises ValueError
    where `group` does not divide the rows.
    """
    if len(lengths) % group:
        raise ValueError(f"{len(lengths)} rows cannot be split into groups of {group}")
    groups = [range(i, i + group) for i in range(0, len(lengths), group)]
    inputs = [[length] for length in lengths] if packed or branches is None else branches
    longest = [max(length for r in rows for length in inputs[r]) for rows in groups]
    heights = [sum(len(inputs[r]) for r in rows) for rows in groups]
    tokens = [sum(lengths[r] for r in rows) for rows in groups]
    # Longest first: similar lengths meet in a micro-batch, and the last groups dealt even out the ranks.
    order = sorted(range(len(groups)), key=lambda g: (-longest[g], g))

    loads = [0] * ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for g in order:
        rank = loads.index(min(loads))
        dealt[rank].append(g)
        loads[rank] += tokens[g]

    pack = partial(_first_fit, tokens) if packed else partial(_in_order, longest, heights)
    batches = [pack(mine, token_budget) for mine in dealt]
    count = max(len(batch) for batch in batches)
    for batch in batches:
        batch += [[] for _ in range(count - len(batch))]
    return [[[r for g in micro for r in groups[g]] for micro in batch] for batch in batches]


def _first_fit(tokens: Sequence[int], mine: Sequence[int], budget: int) -> list[list[int]]:
    """Micro-batches of the groups `mine`, each put into the first one that it fits: any hole can be filled."""
    micro_batches: list[list[int]] = []
    sizes: list[int] = []
    for g in mine:
        most = budget - tokens[g]
        at = next((i for i, size in enumerate(sizes) if size <= most), len(sizes))
        if at == len(sizes):
            micro_batches.append([])
            sizes.append(0)
        micro_batches[at].append(g)
        sizes[at] += tokens[g]
    return micro_batches


def _in_order(
    longest: Sequence[int], heights: Sequence[int], mine: Sequence[int], budget: int
) -> list[list[int]]:
    """Micro-batches of the groups `mine`, longest first, filled up one after the other: similar lengths meet."""
    micro_batches: list[list[int]] = []
    height = 0
    for g in mine:
        height += heights[g]
        if not micro_batches or height * longest[micro_batches[-1][0]] > budget:
            micro_batches.append([])
            height = heights[g]
        micro_batches[-1].append(g)
    return micro_batches


@dataclass(frozen=True)
class MicroBatch:
    """n rows of `Sequences`, each right-padded to T columns or all packed end to end into one row of T tokens, and
    where their A_mb response tokens lie. A row with branches is as many rows of the input, s in all; else s is n.

    On the model's device: int64 `input_ids`, `position_ids` [s, T] ([1, T] packed); `attention_mask`, int64 [s, T], or
    packed int32 [1, 1, 1, s + 1], where each row begins and the last one ends; int64 `parts` [s], the place in `rows`
    of what each row of the input is of; int64 `response_row`, `response_column` and `targets` [A_mb], the place in
    [s, T] of every response token, and the token, end to end in the order of the rows. With `images`, those of the
    rows, `image_places`, bool [n, T], are their tokens, and `position_ids` are [3, n, T], as `Images` has them.
    `longest` is the length of the input's longest row. On the CPU, to index packed arrays: int64 `rows` [n],
    `response_index` [A_mb], the place of the same tokens in response-aligned arrays of all the sequences, and
    `host_column` [A_mb], a copy of `response_column`.
    `kept`, int64 [A_mb, K] on the device: the tokens that each one was sampled from, see `Kept.with_own`; None for all.
    `routing`, int16 [s T, L, K] on the device, as in `Sequences`, UNKNOWN for padding.
    `pad_token_id` is no row's last token, so that a sequence-classification head, which pools at the last token that is
    not padding, pools at the right one.

    Without rows (n = 0, A_mb = 0) the input still holds one token of the first sequence, so that the forward
    pass happens; everything read from its output is empty.
    """

    rows: Tensor
    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    response_row: Tensor
    response_column: Tensor
    targets: Tensor
    response_index: Tensor
    host_column: Tensor
    longest: int
    pad_token_id: int
    parts: Tensor
    kept: Tensor | None = None
    images: Images | None = None
    image_places: Tensor | None = None
    routing: Tensor | None = None

    @classmethod
    def build(
        cls,
        sequences: Sequences,
        rows: Sequence[int],
        pad_token_id: int,
        device: torch.device | str = "cpu",
        *,
        packed: bool = False,
    ) -> Self:
        """The micro-batch of `rows`; `pad_token_id` is used where no row ends in it."""
        index = torch.tensor(rows, dtype=torch.int64)
        picked, parts = sequences.select(index).by_branch()
        tokens, lengths = (
            (picked.tokens, picked.lengths) if rows else (sequences.tokens[:1], torch.ones(1).long())
        )
        ends = set(tokens[lengths.cumsum(0) - 1].tolist())
        pad = next(t for t in (pad_token_id, *range(len(ends) + 1)) if t not in ends)
        row = torch.repeat_interleave(torch.arange(len(picked)), picked.response_lengths)
        column = picked.response_columns
        images = picked.images if picked.images is not None and len(picked.images) else None
        placed = ragged_index(torch.zeros_like(lengths), lengths)
        placed = placed if images is None else images.position_ids(lengths)
        if packed:
            starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
            input_ids, mask = tokens[None], starts.to(torch.int32)[None, None, None]
            positions = placed.unsqueeze(-2)
            row, column = torch.zeros_like(row), column + starts[row]
        else:
            columns = torch.arange(int(lengths.max()))
            real = columns < lengths[:, None]
            input_ids = torch.full(real.shape, pad, dtype=torch.int64)
            input_ids[real] = tokens
            mask, positions = real.to(torch.int64), columns.expand(*placed.shape[:-1], *real.shape).clone()
            positions[..., real] = placed
        image_places = None
        if images is not None:
            image_places = torch.zeros_like(input_ids, dtype=torch.bool)
            image_places[torch.ones_like(image_places) if packed else real] = images.places(lengths)
        targets = input_ids[row, column]
        routing = picked.routing
        if routing is not None and not (packed and rows):
            whole = routing.new_full((input_ids.numel(), *routing.shape[1:]), UNKNOWN)
            if rows:
                whole[real.flatten()] = routing
            routing = whole
        return cls(
            rows=index,
            input_ids=to_device(input_ids, device),
            attention_mask=to_device(mask, device),
            position_ids=to_device(positions, device),
            response_row=to_device(row, device),
            response_column=to_device(column, device),
            targets=to_device(targets, device),
            response_index=sequences.response_index(index),
            host_column=column,
            longest=int(lengths.max()),
            pad_token_id=pad,
            parts=to_device(parts, device),
            kept=None if picked.kept is None else to_device(picked.kept.with_own(targets), device),
            images=images,
            image_places=None if image_places is None else to_device(image_places, device),
            routing=None if routing is None else to_device(routing, device),
        )

    @property
    def packed(self) -> bool:
        return self.attention_mask.ndim == 4

    @property
    def owners(self) -> Tensor:
        """The row, 0 to n - 1, of each token of the input, n for padding: int64 [s T] on the device."""
        count, device = len(self.rows), self.input_ids.device
        if not count:
            return torch.zeros(1, dtype=torch.int64, device=device)
        if not self.packed:
            return torch.where(self.attention_mask.bool(), self.parts[:, None], count).flatten()
        places = torch.arange(self.input_ids.shape[1], device=device)
        ends = self.attention_mask.flatten()[1 : len(self.parts) + 1]
        return torch.nn.functional.pad(self.parts, (0, 1), value=count)[
            torch.bucketize(places, ends, right=True)
        ]

    @property
    def last_parts(self) -> Tensor:
        """The input's last row of each row: int64 [n] on the device."""
        return self.parts.bincount(minlength=len(self.rows)).cumsum(0) - 1


OutputFn = Callable[[Tensor, MicroBatch], Tensor]
"""(logits, micro-batch) -> the values read from them, packed."""
MAXIMUM = "_max"
"""Suffix of statistics of a loss that are maxima over tokens; all others are sums."""
Loss = Callable[[Tensor, MicroBatch], tuple[Tensor, Mapping[str, Tensor]]]
"""(values read, micro-batch) -> a scalar and named scalars, weighted so that their sums (maxima, of names that end in
MAXIMUM) over all micro-batches of all ranks are the loss and the statistics."""
