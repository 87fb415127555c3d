"""Parses frames of a response stream, which come from another process and are checked."""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator

from pydantic import BaseModel, ValidationError

from rlhf_api.sections.sampling import MOST_KEPT

from ..tensors.expert_rows import ExpertRows, ExpertsShape
from ..tensors.sampling_mask import ROUNDING
from .frames import (
    COUNT_BYTES,
    HEADER,
    ID_BYTES,
    MOST_ERROR_BYTES,
    MOST_TOKENS,
    TOKEN_BYTES,
    Frame,
    Kind,
    little_endian,
)

_KINDS = tuple(Kind)  # a dict, several times faster than the enum's lookup by value


class RequestFailed(Exception):
    """An ERROR frame: `code` as an HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotFinite(ValueError):
    """A log-probability is NaN or infinite: the engine's arithmetic failed at this response, and its server lives."""


class _Error(BaseModel):
    code: int
    message: str


class FrameReader:
    """Parses frames from a byte stream that arrives in pieces of any size."""

    def __init__(
        self, oldest: int = 0, experts: ExpertsShape | None = None, most_experts: int = MOST_TOKENS
    ) -> None:
        """`oldest`: the lowest weight version that is one; -1 is that of the weights with which an engine starts.
        `experts`: the shape of rows that were asked for, and `most_experts`: the largest number of them that can wait
        for the tokens that they belong to."""
        self._rest, self._oldest = b"", oldest
        self._shape, self._most_experts = experts, most_experts
        self._rows = defaultdict[int, ExpertRows](ExpertRows)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that `data` completes.

        Raises:
            RequestFailed: an ERROR frame came.
            ValueError: the header, a token or a log-probability is invalid.
        """
        data, at = self._rest + data if self._rest else data, 0
        while len(data) - at >= HEADER.size:
            size, index, number, count, version = HEADER.unpack_from(data, at)
            kind = _kind(size, number, count, self._shape)
            begin, end = at + HEADER.size, at + HEADER.size + size
            if end > len(data):
                break
            at = end
            if kind is Kind.ERROR:
                raise _failure(data[begin:end])
            if kind is Kind.EXPERTS:
                self._add_experts(index, data[begin:end])
                continue
            if count and version < self._oldest:
                raise ValueError(f"{count} tokens of no weight version of a trainer")
            frame = _frame(index, kind, version, count, data[begin:end])
            yield frame._replace(experts=self._rows.pop(index).parts) if index in self._rows else frame
        self._rest = data[at:]

    def _add_experts(self, index: int, data: bytes) -> None:
        assert self._shape is not None
        self._rows[index].add([self._shape.parse(data)])
        if (count := sum(map(len, self._rows.values()))) > self._most_experts:
            raise ValueError(f"experts of {count} tokens before a frame; at most {self._most_experts}")

    def close(self) -> None:
        """Raises ValueError where the stream ended inside a frame."""
        if self._rest:
            raise ValueError(f"the stream ended {len(self._rest)} bytes into a frame")


def _kind(size: int, number: int, count: int, experts: ExpertsShape | None) -> Kind:
    if number >= len(_KINDS):
        raise ValueError(f"unknown kind of frame: {number}")
    kind = _KINDS[number]
    if kind is Kind.EXPERTS:
        if experts is None or count > MOST_TOKENS or size != count * experts.row_bytes:
            expected = "that were not asked for" if experts is None else f"of {experts.row_bytes} bytes each"
            raise ValueError(f"a frame of {size} bytes and {count} rows of experts, {expected}")
        return kind
    plain, masked = TOKEN_BYTES * count, (TOKEN_BYTES + COUNT_BYTES) * count
    most = MOST_ERROR_BYTES if kind is Kind.ERROR else masked + ID_BYTES * MOST_KEPT * count
    if count > MOST_TOKENS or size > most:
        raise ValueError(f"a frame of {size} bytes and {count} tokens; one of {kind.name} has at most {most}")
    if kind is not Kind.ERROR and size != plain and (size < masked or size % ID_BYTES):
        raise ValueError(f"a frame of {size} bytes cannot hold {count} tokens")
    return kind


def _frame(index: int, kind: Kind, version: int, count: int, payload: bytes) -> Frame:
    size = 4 * count
    tokens, logprobs = array("i", payload[:size]), array("f", payload[size : 2 * size])
    counts, kept_tokens = array("i", payload[2 * size : 3 * size]), array("i", payload[3 * size :])
    for ids in (tokens, kept_tokens):
        if ids and (lowest := min(little_endian(ids))) < 0:
            raise ValueError(f"{lowest} is not a token id")
    if not math.isfinite(sum(little_endian(logprobs))):
        raise NotFinite("a log-probability is not finite")
    if logprobs and (highest := max(logprobs)) > ROUNDING:
        raise ValueError(f"{highest:g} is not a log-probability: it is above 0")
    if counts and (
        min(little_endian(counts)) < 0 or max(counts) > MOST_KEPT or sum(counts) != len(kept_tokens)
    ):
        raise ValueError(f"a sampling mask of {len(kept_tokens)} tokens does not match its counts")
    return Frame(index, kind, version, tokens, logprobs, counts, kept_tokens)


def _failure(payload: bytes) -> RequestFailed:
    try:
        message = _Error.model_validate_json(payload)
    except ValidationError as error:
        raise ValueError(f"an ERROR frame without a valid message: {error}") from None
    return RequestFailed(message.code, message.message)
