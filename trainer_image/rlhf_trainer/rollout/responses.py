"""Broadcasts rank 0's responses to all ranks as columns, with the outcome of prompts without responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import torch
from torch import Tensor

from rlhf_api.graph import GIVEN, TEACHER

from ..ranks.ranks import Message, Ranks
from ..replay.table import Episode
from ..tensors.columns import Columns
from ..tensors.expert_rows import pack_rows
from ..tensors.packed import flat_flags, flat_floats, flat_int32s, flat_places
from ..tensors.records import Rollout, Sequences
from ..tensors.sampling_mask import Kept, filled
from .in_flight.requests import Responses
from .partial_rollout import Response

_OF_TOKENS = ("sampled_logprobs", "versions", "turn_rewards")
_OF_ROWS = ("position", "finished", "environment_reward", "turns", GIVEN, TEACHER)
"""Arrays of a message that become columns."""


@dataclass(frozen=True)
class Collected:
    """`episode` is None where no prompt was answered; `requeued`: positions of prompts, `dropped`: positions of those
    that are given up, by reason, `unanswered`: positions of those that a later step asks for again, and `stopped`: of
    those that were stopped."""

    episode: Episode | None
    requeued: list[int]
    dropped: Mapping[str, list[int]]
    unanswered: Sequence[int] = ()
    stopped: Sequence[int] = ()


def collected(
    ranks: Ranks,
    number: int,
    responses: Responses,
    places: Mapping[str, int],
    teachers: Sequence[str] = (),
) -> Collected:
    """Broadcast of rank 0's responses as (a part of) the episode `number`; a collective.

    `places`: each prompt's position by its id; `teachers`: names, of which each prompt's row has one.
    """
    arrays, header = ranks.share(lambda: message(responses, places, teachers))
    fates = header["requeued"], header["dropped"], header["unanswered"], header["stopped"]
    if not header["ids"]:
        return Collected(None, *fates)
    kept_tokens = Kept(arrays["kept_counts"], arrays["kept"]) if "kept" in arrays else None
    tokens = arrays.pop("tokens").long()  # removed from the message, so that the int32 copy is freed
    arrays["versions"] = _run_lengths(arrays["versions"], arrays["version_counts"])
    lengths = arrays["lengths"], arrays["prompt_lengths"]
    sampled, branches = arrays.get("sampled"), arrays.get("branches")
    sequences = Sequences(
        *(tokens, *lengths),
        kept=kept_tokens,
        sampled=sampled,
        branches=branches,
        routing=arrays.get("routing"),
    )
    columns = Columns(
        sequences,
        {name: arrays[name] for name in _OF_TOKENS if name in arrays},
        {name: arrays[name] for name in _OF_ROWS if name in arrays},
    )
    return Collected(Episode(number, tuple(header["ids"]), columns), *fates)


def pack(rollouts: Sequence[Rollout]) -> Sequences:
    """Packs the prompt and response of each rollout."""
    finished = torch.tensor([r.finished for r in rollouts], dtype=torch.bool)
    packed = Sequences.pack([(r.prompt.tokens, r.tokens) for r in rollouts])
    sampled, branches = flags_of(rollouts)
    return replace(packed, finished=finished, sampled=sampled, branches=branches)


def flags_of(responses: Sequence[Rollout | Response]) -> tuple[Tensor | None, Tensor | None]:
    """`sampled` and `branches` of `Sequences`."""
    return (
        flat_flags([(each.sampled, len(each.tokens)) for each in responses]),
        flat_places([(each.branches, len(each.tokens)) for each in responses]),
    )


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


def sampled_part(episode: Episode) -> Episode:
    """The responses that the policy sampled, without given ones; all where there are no others."""
    if GIVEN not in episode.columns:
        return episode
    rows = (episode.columns[GIVEN] == 0).nonzero()[:, 0]
    return episode.select(rows) if len(rows) else episode


def message(responses: Responses, places: Mapping[str, int], teachers: Sequence[str] = ()) -> Message:
    """Message with the responses for the other ranks: 8 bytes per sampled token and 5 per context token, plus sampling
    masks and experts; `places` and `teachers` as in `collected`. Versions are run-length encoded: they change only
    where new weights come during a response."""
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
        "stopped": [places[prompt_id] for prompt_id in responses.stopped],
    }
    versions, version_counts = _runs([r.of_sampled(r.versions) for r in rollouts])
    more = _of_episodes(rollouts)
    given = [r.prompt.given is not None for r in rollouts]
    if any(given):
        more[GIVEN] = torch.tensor(given, dtype=torch.float32)
    if teachers:
        numbers = [teachers.index(r.prompt.row[TEACHER]) for r in rollouts]
        more[TEACHER] = torch.tensor(numbers, dtype=torch.float32)
    if any(r.kept_counts for r in rollouts):
        counts = (r.of_sampled(filled(r.kept_counts, len(r.tokens))) for r in rollouts)
        more["kept_counts"] = flat_int32s(counts)
        more["kept"] = flat_int32s(r.kept for r in rollouts)
    if (
        routing := pack_rows([(r.experts, sum(n)) for r, n in zip(rollouts, lengths, strict=True)])
    ) is not None:
        more["routing"] = routing
    return more | {
        "tokens": flat_int32s(part for r in rollouts for part in (r.prompt.tokens, r.tokens)),
        "lengths": torch.tensor([sum(pair) for pair in lengths], dtype=torch.int64),
        "prompt_lengths": torch.tensor([prompt for prompt, _ in lengths], dtype=torch.int64),
        "sampled_logprobs": flat_floats(r.of_sampled(r.logprobs) for r in rollouts),
        "versions": versions,
        "version_counts": version_counts,
        "position": torch.tensor([places[r.prompt.id] for r in rollouts], dtype=torch.int64),
        "finished": torch.tensor([r.finished for r in rollouts], dtype=torch.bool),
    }, header


def _of_episodes(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Arrays of episodes beside those of other responses: flags of sampled tokens, and rewards; see `Columns`."""
    flags = zip(("sampled", "branches"), flags_of(rollouts), strict=True)
    arrays = {name: each for name, each in flags if each is not None}
    outcomes = [r.outcome for r in rollouts]
    if not any(outcomes):
        return arrays
    rewards = [nan if outcome is None or outcome.problem else outcome.reward for outcome in outcomes]
    return arrays | {
        "environment_reward": torch.tensor(rewards, dtype=torch.float32),
        "turns": torch.tensor([outcome.turns if outcome else 0 for outcome in outcomes], dtype=torch.int64),
        "turn_rewards": torch.cat([_turn_rewards(r) for r in rollouts]),
    }


def _turn_rewards(rollout: Rollout) -> Tensor:
    """Rewards of the turns at their last sampled tokens: float32, one entry for each sampled token."""
    sampled = torch.tensor(rollout.sampled or [1] * len(rollout.tokens), dtype=torch.int64)
    places, rewards = sampled.cumsum(0) - sampled, torch.zeros(int(sampled.sum()), dtype=torch.float32)
    for index, reward in rollout.outcome.turn_rewards if rollout.outcome else ():
        rewards[places[index]] += reward
    return rewards


def _runs(parts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Run-length encoding of int32 arrays, without runs across arrays: values, int32, and run lengths, int64."""
    values, lengths = flat_int32s(parts), torch.tensor([*map(len, parts)], dtype=torch.int64)
    begins = torch.ones(len(values), dtype=torch.bool)
    begins[1:] = values.diff() != 0
    begins[(lengths.cumsum(0) - lengths)[lengths > 0]] = True
    places = begins.nonzero().flatten()
    return values[places], torch.cat([places, torch.tensor([len(values)])]).diff()


def _run_lengths(values: Tensor, counts: Tensor) -> Tensor:
    """Inverse of `_runs`: int64. In place, since `repeat_interleave` first makes an index of the same size."""
    whole = torch.empty(int(counts.sum()), dtype=torch.int64)
    for part, value in zip(whole.split(counts.tolist()), values.tolist(), strict=True):
        part.fill_(value)
    return whole
