"""Chooses responses of an episode for people to read, and describes them."""

import math
from collections.abc import Mapping

import torch

from rlhf_api.contract.samples import Sample

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
    lengths = sequences.response_lengths.tolist()
    versions = [int(each[-1]) for each in columns["versions"].split(lengths)]
    scores = columns["scores"].tolist() if "scores" in columns else [None] * len(episode)
    advantages: list[float | None] = [None] * len(episode)
    if "advantages" in columns:
        advantages = [float(each.mean()) for each in columns["advantages"].split(lengths)]
    return [
        Sample(
            step=step,
            prompt_id=prompt_id,
            prompt=prompt[:TEXT_CHARACTERS],
            response=response[:TEXT_CHARACTERS],
            score=score,
            rewards=rewards,
            advantage=advantage,
            finished=finished,
            weight_version=version,
            prompt_length=prompt_length,
            response_length=length,
        )
        for prompt_id, prompt, response, score, rewards, advantage, finished, version, prompt_length, length in zip(
            episode.prompt_ids,
            *texts(sequences),
            scores,
            _rewards(episode),
            advantages,
            columns["finished"].tolist(),
            versions,
            sequences.prompt_lengths.tolist(),
            lengths,
            strict=True,
        )
    ]


def _rewards(episode: Episode) -> list[Mapping[str, float | None]]:
    """Each response's scores by the reward's name."""
    scores = {name: values.tolist() for name, values in episode.rewards.items()}
    return [
        {name: None if math.isnan(values[row]) else values[row] for name, values in scores.items()}
        for row in range(len(episode))
    ]
