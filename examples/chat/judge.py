"""The judge of the evaluation, which needs no package."""

from collections.abc import Mapping, Sequence
from typing import Any


def result(response: str) -> str:
    """All after the last equals sign."""
    return response.rpartition("=")[2].strip()


def correct(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> list[float]:
    """1 where the result is the answer and nothing else, or else 0."""
    return [float(result(response) == row["answer"]) for response, row in zip(responses, rows, strict=True)]
