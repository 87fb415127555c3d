"""A reward that any language model can raise within a few steps: `rlhf selftest` checks by it that training learns."""

from collections.abc import Mapping, Sequence
from typing import Any


def even_share(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],  # noqa: ARG001
) -> list[float]:
    """The share of each response's characters whose code point is even; 0 for an empty one. It is about half in any
    language and tokenizer, and every token contributes, so that responses differ from the first step on."""
    return [sum(ord(c) % 2 == 0 for c in text) / len(text) if text else 0.0 for text in responses]
