"""Verifiable rewards of sorting: `places` to train on, which tells nearly right from wrong, `exact` to judge by."""

from collections.abc import Mapping, Sequence
from typing import Any


def sorted_words(prompt: str) -> list[str]:
    """The digits of `sort 3 1 2 :`, in order."""
    return sorted(prompt.split()[1:-1])


def places(
    prompts: Sequence[str],
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],  # noqa: ARG001
) -> list[float]:
    """The share of places that hold the right digit; of the longer of both where a response has too many or too few."""
    scores = []
    for prompt, response in zip(prompts, responses, strict=True):
        right, given = sorted_words(prompt), response.split()
        scores.append(sum(a == b for a, b in zip(right, given, strict=False)) / max(len(right), len(given)))
    return scores


def exact(
    prompts: Sequence[str],
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],  # noqa: ARG001
) -> list[float]:
    """1.0 for a response that is sorted, else 0.0."""
    return [
        float(response.split() == sorted_words(p)) for p, response in zip(prompts, responses, strict=True)
    ]
