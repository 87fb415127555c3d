"""Checks of a frame of a response, which another process has written."""

from collections.abc import Sequence

from ...transport.frames import Frame, Kind
from ..partial_rollout import Response


def check_frame(response: Response, frame: Frame, most: int, vocabulary: int, *, masked: bool) -> None:
    """Raises ValueError for more tokens than requested, `most` of the response, for fewer where their number ends it,
    for those outside the `vocabulary`, and for tokens without the sampling masks that were asked for."""
    if (highest := max(max(ids, default=0) for ids in (frame.tokens, frame.kept))) >= vocabulary:
        raise ValueError(f"token id {highest} is outside the vocabulary of {vocabulary}")
    count = len(response.tokens) + len(frame.tokens)
    if response.end is not None or count > most:
        raise ValueError(f"{count} tokens of a response that had ended, or that has at most {most}")
    if frame.kind is Kind.LENGTH and count < most:
        raise ValueError(f"the length limit of {most} tokens ended a response of {count}")
    if len(frame.counts) != (len(frame.tokens) if masked else 0):
        raise ValueError(f"{len(frame.tokens)} tokens with {len(frame.counts)} sampling masks")


def check_routed(prompt: Sequence[int], response: Response) -> None:
    """Raises ValueError unless all tokens but the last, of which none is known, have a row of experts."""
    if (count := len(response.experts)) != (expected := len(prompt) + len(response.tokens) - 1):
        raise ValueError(f"experts of {count} tokens, where {expected} have been read")
