"""Broadcasts rank 0's responses to all ranks as columns, with the outcome of prompts without responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..ranks.ranks import Message, Ranks
from ..replay.table import Episode
from ..tensors.packed import flat_floats, flat_int32s
from ..tensors.records import Columns, Rollout, Sequences
from ..tensors.sampling_mask import Kept, filled
from .requests import Responses


@dataclass(frozen=True)
class Collected:
    """`episode` is None where no prompt was answered; `requeued`: positions of prompts, `dropped`: positions of those
    that are given up, by reason, and `unanswered`: positions of those that a later step asks for again."""

    episode: Episode | None
    requeued: list[int]
    dropped: Mapping[str, list[int]]
    unanswered: Sequence[int] = ()


def collected(ranks: Ranks, number: int, responses: Responses, places: Mapping[str, int]) -> Collected:
    """Broadcast of rank 0's responses as (a part of) the episode `number`; a collective.

    `places`: each prompt's position by its id.
    """
    arrays, header = ranks.share(lambda: message(responses, places))
    fates = header["requeued"], header["dropped"], header["unanswered"]
    if not header["ids"]:
        return Collected(None, *fates)
    kept_tokens = Kept(arrays["kept_counts"], arrays["kept"]) if "kept" in arrays else None
    tokens = arrays.pop("tokens").long()  # removed from the message, so that the int32 copy is freed
    versions = _run_lengths(arrays["versions"], arrays["version_counts"])
    sequences = Sequences(tokens, arrays["lengths"], arrays["prompt_lengths"], kept_tokens)
    columns = Columns(
        sequences,
        {"sampled_logprobs": arrays["sampled_logprobs"], "versions": versions},
        {name: arrays[name] for name in ("position", "finished")},
    )
    return Collected(Episode(number, tuple(header["ids"]), columns), *fates)


def pack(rollouts: Sequence[Rollout]) -> Sequences:
    """Packs the prompt and response of each rollout."""
    finished = torch.tensor([r.finished for r in rollouts], dtype=torch.bool)
    return replace(Sequences.pack([(r.prompt.tokens, r.tokens) for r in rollouts]), finished=finished)


def joined(parts: Sequence[Episode]) -> Episode:
    """Concatenates the parts of one episode."""
    return Episode(
        number=parts[0].number,
        prompt_ids=tuple(prompt_id for part in parts for prompt_id in part.prompt_ids),
        columns=Columns.join([part.columns for part in parts]),
        rewards={
            name: torch.cat([part.rewards[name] for part in parts])
            for name in parts[0].rewards
            if all(name in part.rewards for part in parts)
        },
    )


def message(responses: Responses, places: Mapping[str, int]) -> Message:
    """Message with the responses for the other ranks: 8 bytes per token, plus sampling masks; `places` as in
    `collected`. Versions are run-length encoded: they change only where new weights come during a response."""
    rollouts = responses.rollouts
    lengths = [(len(r.prompt.tokens), len(r.tokens)) for r in rollouts]
    dropped: dict[str, list[int]] = {}
    for prompt_id, reason in responses.refused.items():
        dropped.setdefault(reason, []).append(places[prompt_id])
    header: dict[str, Any] = {
        "ids": [r.prompt.id for r in rollouts],
        # Told when the stream ends: some may have been dropped meanwhile.
        "requeued": [places[prompt_id] for prompt_id in responses.requeued if prompt_id in places],
        "dropped": dropped,
        "unanswered": [places[prompt_id] for prompt_id in responses.unanswered],
    }
    versions, version_counts = _runs([r.versions for r in rollouts])
    masks = dict[str, Tensor]()
    if any(r.kept_counts for r in rollouts):
        masks["kept_counts"] = flat_int32s(filled(r.kept_counts, len(r.tokens)) for r in rollouts)
        masks["kept"] = flat_int32s(r.kept for r in rollouts)
    return masks | {
        "tokens": flat_int32s(part for r in rollouts for part in (r.prompt.tokens, r.tokens)),
        "lengths": torch.tensor([sum(pair) for pair in lengths], dtype=torch.int64),
        "prompt_lengths": torch.tensor([prompt for prompt, _ in lengths], dtype=torch.int64),
        "sampled_logprobs": flat_floats(r.logprobs for r in rollouts),
        "versions": versions,
        "version_counts": version_counts,
        "position": torch.tensor([places[r.prompt.id] for r in rollouts], dtype=torch.int64),
        "finished": torch.tensor([r.finished for r in rollouts], dtype=torch.bool),
    }, header


def _runs(parts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Run-length encoding of int32 arrays, without runs across arrays: values, int32, and run lengths, int64."""
    runs = [torch.unique_consecutive(flat_int32s([part]), return_counts=True) for part in parts]
    values = [torch.zeros(0, dtype=torch.int32), *(each for each, _ in runs)]
    return torch.cat(values), torch.cat([torch.zeros(0, dtype=torch.int64), *(counts for _, counts in runs)])


def _run_lengths(values: Tensor, counts: Tensor) -> Tensor:
    """Inverse of `_runs`: int64. In place, since `repeat_interleave` first makes an index of the same size."""
    whole = torch.empty(int(counts.sum()), dtype=torch.int64)
    for part, value in zip(whole.split(counts.tolist()), values.tolist(), strict=True):
        part.fill_(value)
    return whole
