"""The batches that reward and reference answer, as messages."""

import itertools
from typing import Any

import torch

from ..comms.ranks import Message
from ..comms.wire import WireError
from ..records import Sequences

SCORE_ROUTE = "/score"
"""Header `rows`: the dataset row of each sequence; `judge`: true asks the evaluation function instead of the
reward. Answer: `scores` float32 [N]."""
LOGPROBS_ROUTE = "/logprobs"
"""Answer: `logprobs` float32 [A], response-aligned, in nats."""


def pack(sequences: Sequences, **header: Any) -> Message:
    arrays = {
        "tokens": sequences.tokens,
        "lengths": sequences.lengths,
        "prompt_lengths": sequences.prompt_lengths,
    }
    return arrays, header


def unpack(message: Message) -> Sequences:
    """Raises WireError where the arrays are no packed sequences."""
    arrays, _ = message
    try:
        sequences = Sequences(arrays["tokens"], arrays["lengths"], arrays["prompt_lengths"])
    except KeyError as error:
        raise WireError(f"the message has no array {error}") from None
    three = (sequences.tokens, sequences.lengths, sequences.prompt_lengths)
    if any(a.dtype != torch.int64 for a in three):
        raise WireError(f"packed sequences are int64; got {', '.join(str(a.dtype) for a in three)}")
    shapes = [a.ndim for a in three]
    if shapes != [1, 1, 1] or len(sequences.lengths) != len(sequences.prompt_lengths):
        raise WireError(f"packed sequences have three one-dimensional arrays; got dimensions {shapes}")
    shortest = torch.cat([sequences.prompt_lengths, sequences.response_lengths])
    if int(sequences.lengths.sum()) != len(sequences.tokens) or bool((shortest < 1).any()):
        raise WireError(
            "the lengths of packed sequences must add up to their tokens, with a prompt and an answer each"
        )
    return sequences


def rows_of(message: Message) -> list[Any]:
    """The dataset row of each sequence. Raises WireError where they are not as many."""
    arrays, header = message
    rows = header.get("rows")
    if not isinstance(rows, list) or len(rows) != len(arrays["lengths"]):
        raise WireError("the message must have one row for each sequence")
    return rows


def split(count: int, parts: int) -> list[range]:
    """`count` rows in at most `parts` runs of nearly equal size, none empty."""
    parts = max(1, min(parts, count))
    bounds = [count * i // parts for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]
