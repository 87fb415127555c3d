"""Messages of the reward and reference roles: batches to score."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from rlhf_api.field_types import Report

from ..ranks.ranks import Message
from ..tensors.image_arrays import images_of_arrays, images_to_arrays
from ..tensors.records import Sequences
from ..tensors.sampling_mask import Kept
from ..transport.wire import WireError, as_array, json_of

SCORE_ROUTE = "/score"
"""Arrays `rows` and `row`, see `pack`; header `part`: a `Part` or a `judge_part`. Reply: `scores` float64 [N], or
`token_scores` float64 [A] of a `Part` with token rewards: weighted sums of the part's rewards, NaN for responses
without a score; header: a `ScoreReport`."""
LOGPROBS_ROUTE = "/logprobs"
"""Path. Reply: `logprobs` float32 [A], response-aligned, in nats; or `top_logprobs` float32 [A, 2 K], see
`top_tokens`."""


class Part(StrEnum):
    """Rewards that one message asks for: functions, services and programs, which wait more than they compute; or the
    reward models, which compute."""

    FUNCTIONS = "functions"
    MODEL = "model"


def judge_part(metric: str) -> str:
    """The part of one metric of an evaluation, whose reply has `scores` of whole responses, unweighted."""
    return f"judge {metric}"


class PartReport(Report):
    """Report of one reward function or model on the N responses of a message."""

    total: float
    """Sum of the scores, before the weight."""
    failed: int
    """Number of responses that it could not score."""
    seconds: float
    """Seconds of its calls."""
    scores: tuple[float | None, ...] = ()
    """Of each response, before the weight; the sum of its tokens' with token rewards. None where it failed."""

    def of_one(self, place: int) -> "PartReport":
        """The report of the response at `place` alone."""
        score = self.scores[place]
        failed = score is None
        return PartReport(
            total=score or 0.0, failed=int(failed), seconds=self.seconds / len(self.scores), scores=(score,)
        )


class ScoreReport(Report):
    """Failures of a message's N responses, place -> reason; and a report for each reward by name."""

    failures: dict[int, str]
    parts: dict[str, PartReport]

    def of_each(self, count: int) -> "list[ScoreReport]":
        """The report of each of the message's `count` responses alone."""
        return [
            ScoreReport(
                failures={0: self.failures[place]} if place in self.failures else {},
                parts={name: part.of_one(place) for name, part in self.parts.items()},
            )
            for place in range(count)
        ]


def parse_report(header: Mapping[str, Any], count: int) -> ScoreReport:
    """Parses the header of a reply about `count` responses. Raises RuntimeError if it is invalid."""
    try:
        report = ScoreReport.model_validate(header, strict=False)  # JSON keys are strings
    except ValidationError as error:
        raise RuntimeError(f"the reward's reply has no report of its scores: {error}") from None
    if not all(0 <= place < count for place in report.failures):
        raise RuntimeError(f"the reward's reply to {count} responses reports failures of other responses")
    if wrong := [name for name, part in report.parts.items() if len(part.scores) != count]:
        raise RuntimeError(f"the reward's reply to {count} responses has other numbers of scores of {wrong}")
    return report


def pack(sequences: Sequences, rows: Sequence[Any] | None = None, **header: Any) -> Message:
    """Packs N sequences; with each one's dataset row, if given, stored once for all responses to one prompt: `rows`
    uint8 [bytes] is the JSON list of distinct rows, `row` int64 [N] each sequence's index in it, and bool `finished`
    [N]. Without rows, as for log-probabilities, with their sampling mask: int32 `kept_counts` [A] and `kept`, and
    their images, see `tensors.image_arrays`. With `sampled` and `branches`, as in `Sequences`, where there are context
    tokens."""
    arrays = {
        "tokens": sequences.tokens,
        "lengths": sequences.lengths,
        "prompt_lengths": sequences.prompt_lengths,
    }
    if sequences.sampled is not None:
        arrays["sampled"] = sequences.sampled
    if sequences.branches is not None:
        arrays["branches"] = sequences.branches
    if rows is not None:
        # Compared by value: each response to a prompt has its own copy of the row.
        texts = [json.dumps(row, separators=(",", ":")) for row in rows]
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        arrays["rows"] = as_array(f"[{','.join(places)}]")
        arrays["row"] = torch.tensor([places[text] for text in texts], dtype=torch.int64)
        if sequences.finished is not None:
            arrays["finished"] = sequences.finished
        return arrays, header
    if sequences.kept is not None:
        arrays |= {"kept_counts": sequences.kept.counts, "kept": sequences.kept.tokens}
    if sequences.images is not None:
        arrays |= images_to_arrays(sequences.images)
    return arrays, header


def unpack(message: Message) -> Sequences:
    """Inverse of `pack`. Raises WireError if the arrays are not packed sequences."""
    arrays, _ = message
    try:
        sequences = Sequences(
            arrays["tokens"],
            arrays["lengths"],
            arrays["prompt_lengths"],
            finished=arrays.get("finished"),
        )
    except KeyError as error:
        raise WireError(f"the message has no array {error}") from None
    three = (sequences.tokens, sequences.lengths, sequences.prompt_lengths)
    if any(a.dtype != torch.int64 for a in three):
        raise WireError(f"packed sequences are int64; got {', '.join(str(a.dtype) for a in three)}")
    if (ends := sequences.finished) is not None and (ends.dtype, ends.shape) != (
        torch.bool,
        sequences.lengths.shape,
    ):
        raise WireError(f"`finished` is one bool for each sequence; got {ends.dtype} {list(ends.shape)}")
    shapes = [a.ndim for a in three]
    if shapes != [1, 1, 1] or len(sequences.lengths) != len(sequences.prompt_lengths):
        raise WireError(f"packed sequences have three one-dimensional arrays; got dimensions {shapes}")
    shortest = torch.cat([sequences.prompt_lengths, sequences.after_lengths])
    # Each is compared too: a sum of large ones wraps around.
    longest = int(sequences.lengths.max()) if len(sequences.lengths) else 0
    whole = longest <= len(sequences.tokens) and int(sequences.lengths.sum()) == len(sequences.tokens)
    if not whole or bool((shortest < 1).any()):
        raise WireError(
            "the lengths of packed sequences must add up to their tokens, with a prompt and a response each"
        )
    after = int(sequences.after_lengths.sum())
    sampled, branches = (_flags(arrays, name, after) for name in ("sampled", "branches"))
    sequences = replace(sequences, sampled=sampled, branches=branches)
    if bool((sequences.response_lengths < 1).any()):
        raise WireError("`sampled` must be true for a token of each sequence")
    if branches is not None and (sampled is None or bool((branches & sampled).any())):
        raise WireError("a branch begins with a context token, for which `sampled` is false")
    try:
        images = images_of_arrays(arrays, sequences.prompt_lengths)
    except ValueError as error:
        raise WireError(str(error)) from None
    mask = _sampling_mask(arrays, int(sequences.response_lengths.sum()))
    return replace(sequences, kept=mask, images=images)


def _flags(arrays: Mapping[str, Tensor], name: str, tokens: int) -> Tensor | None:
    """Flags of the `tokens` after the prompts, if the message has them."""
    flags = arrays.get(name)
    if flags is not None and (flags.dtype, flags.shape) != (torch.bool, (tokens,)):
        raise WireError(
            f"`{name}` is one bool for each of the {tokens} tokens after the prompts; got {flags.dtype} "
            f"{list(flags.shape)}"
        )
    return flags


def _sampling_mask(arrays: Mapping[str, Tensor], responses: int) -> Kept | None:
    """The sampling mask of `responses` response tokens, if the message has one."""
    if "kept" not in arrays and "kept_counts" not in arrays:
        return None
    counts, tokens = (arrays.get(name, torch.zeros(0)) for name in ("kept_counts", "kept"))
    try:
        return Kept.checked(counts, tokens, responses)
    except ValueError as error:
        raise WireError(str(error)) from None


def rows_of(message: Message) -> list[Mapping[str, Any]]:
    """The dataset row of each sequence. Raises WireError if the numbers do not match."""
    arrays, _ = message
    if "rows" not in arrays or "row" not in arrays:
        raise WireError("the message must have one row for each sequence")
    rows, places = json_of(arrays["rows"], "the rows of a message"), arrays["row"]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise WireError("the rows of a message are a list of objects")
    if places.dtype != torch.int64 or places.shape != arrays["lengths"].shape:
        raise WireError(
            f"the place of each sequence's row is int64 [N], not {places.dtype} {list(places.shape)}"
        )
    if bool(((places < 0) | (places >= len(rows))).any()):
        raise WireError(f"a sequence's row is not among the {len(rows)} of the message")
    return [dict(rows[place]) for place in places.tolist()]


def places(array: str, sequences: Sequences, rows: Tensor) -> Tensor:
    """Indices of the values of `rows` (int64 [n]) in a reply's `array` over all sequences: int64 [n] or [A]."""
    return rows if array == "scores" else sequences.response_index(rows)
