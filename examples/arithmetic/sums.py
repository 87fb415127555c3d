"""The verifiable reward of a sum: the right one, and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any


def right(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> list[float]:
    """1.0 for a response that is its row's answer, else 0.0."""
    return [float(response == row["answer"]) for response, row in zip(responses, rows, strict=True)]
