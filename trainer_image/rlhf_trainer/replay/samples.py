"""Chooses responses of an episode for people to read, and describes them."""

from typing import Any

import torch

from .table import Episode, Texts

TEXT_CHARACTERS = 20_000
"""Characters of a prompt or response that are kept, its first."""


def choose_samples(episode: Episode, prompts: int) -> Episode:
    """All responses to the first prompts of an episode."""
    chosen = set(list(dict.fromkeys(episode.prompt_ids))[:prompts])
    rows = [row for row, prompt in enumerate(episode.prompt_ids) if prompt in chosen]
    return episode.select(torch.tensor(rows, dtype=torch.int64))


def describe_samples(episode: Episode, texts: Texts) -> list[dict[str, Any]]:
    """The responses with their prompts as text; `score` is the total reward, `advantage` the mean over its tokens,
    `weight_version` that of its last token, lengths are in tokens."""
    columns, sequences = episode.columns, episode.columns.sequences
    lengths = sequences.response_lengths.tolist()
    versions = [int(each[-1]) for each in columns["versions"].split(lengths)]
    scores = columns["scores"].tolist() if "scores" in columns else [None] * len(episode)
    advantages: list[float | None] = [None] * len(episode)
    if "advantages" in columns:
        advantages = [float(each.mean()) for each in columns["advantages"].split(lengths)]
    return [
        {
            "prompt_id": prompt_id,
            "prompt": prompt[:TEXT_CHARACTERS],
            "response": response[:TEXT_CHARACTERS],
            "score": score,
            "advantage": advantage,
            "finished": finished,
            "weight_version": version,
            "prompt_length": prompt_length,
            "response_length": length,
        }
        for prompt_id, prompt, response, score, advantage, finished, version, prompt_length, length in zip(
            episode.prompt_ids,
            *texts(sequences),
            scores,
            advantages,
            columns["finished"].tolist(),
            versions,
            sequences.prompt_lengths.tolist(),
            lengths,
            strict=True,
        )
    ]
