"""Chooses responses of an episode for people to read, and describes them."""

import math
from collections.abc import Mapping
from itertools import accumulate, groupby

import torch

from rlhf_api.contract.samples import Sample, Turn

from ..tensors.columns import Columns
from ..tensors.records import Sequences
from .table import Episode, Texts

TEXT_CHARACTERS = 20_000
"""Characters of a prompt or response that are kept, its first."""


def choose_samples(episode: Episode, prompts: int) -> Episode:
    """All responses to the first prompts of an episode."""
    chosen = set(list(dict.fromkeys(episode.prompt_ids))[:prompts])
    rows = [row for row, prompt in enumerate(episode.prompt_ids) if prompt in chosen]
    return episode.select(torch.tensor(rows, dtype=torch.int64))


def describe_samples(step: int, episode: Episode, texts: Texts) -> list[Sample]:
    """The responses that a step trained on, with their prompts as text."""
    columns, sequences = episode.columns, episode.columns.sequences
    prompts, responses = texts(sequences)
    lengths, rewards = sequences.response_lengths.tolist(), _rewards(episode)
    versions = [int(each[-1]) for each in columns["versions"].split(lengths)]
    scores = columns["scores"].tolist() if "scores" in columns else [None] * len(episode)
    advantages: list[float | None] = [None] * len(episode)
    if "advantages" in columns:
        advantages = [float(each.mean()) for each in columns["advantages"].split(lengths)]
    return [
        Sample(
            step=step,
            prompt_id=episode.prompt_ids[row],
            prompt=prompts[row][:TEXT_CHARACTERS],
            response=responses[row][:TEXT_CHARACTERS],
            score=scores[row],
            rewards=rewards[row],
            advantage=advantages[row],
            finished=bool(columns["finished"][row]),
            weight_version=versions[row],
            prompt_length=int(sequences.prompt_lengths[row]),
            response_length=lengths[row],
            turns=_turns(columns.select(torch.tensor([row])), texts),
        )
        for row in range(len(episode))
    ]


def _turns(one: Columns, texts: Texts) -> tuple[Turn, ...]:
    """Texts of the policy and of the environment, or of what it was given else, in one response, by turns; none without
    replies."""
    sampled, other = one.sequences.sampled_of(0), "environment" if "turn_rewards" in one.tokens else "given"
    if sampled is None or (other == "given" and all(sampled)):
        return ()
    tokens, begin = one.sequences.row(0).tolist(), int(one.sequences.prompt_lengths)
    runs = [(flag, len(list(run))) for flag, run in groupby(sampled)]
    ends = [begin + end for end in accumulate(length for _, length in runs)]
    pairs = [
        (tokens[: end - length], tokens[end - length : end])
        for end, (_, length) in zip(ends, runs, strict=True)
    ]
    turns, left = list[Turn](), TEXT_CHARACTERS
    rewards = one.sequences.after_prompts(one.tokens.get("turn_rewards", torch.zeros(sum(sampled)))).tolist()
    for text, end, (by_policy, _) in zip(texts(Sequences.pack(pairs))[1], ends, runs, strict=True):
        reward = rewards[end - begin - 1] or None
        turns.append(Turn(by="policy" if by_policy else other, text=text[:left], reward=reward))
        left = max(0, left - len(text))
    return tuple(turns)


def _rewards(episode: Episode) -> list[Mapping[str, float | None]]:
    """Each response's scores by the reward's name."""
    scores = {name: values.tolist() for name, values in episode.rewards.items()}
    return [
        {name: None if math.isnan(values[row]) else values[row] for name, values in scores.items()}
        for row in range(len(episode))
    ]
