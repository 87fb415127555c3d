"""Frames of a response stream: token ids and log-probabilities in binary, from a generator to rank 0.

A frame is a header of five little-endian 32-bit integers, the payload's size in bytes, the response's index among those
of its request, the frame's `Kind`, its number of tokens n and the weight version that sampled them; and then the
payload: n int32 token ids followed by n float32 log-probabilities in nats; of an ERROR, its HTTP code and its message
as JSON. That is 8 bytes a token, where JSON takes 83. With a sampling mask n int32 counts follow, and then that many
int32 ids of other tokens that were kept: 12 bytes a token and 4 for each other one.
"""

import base64
import json
import math
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf_api.sections.sampling import MOST_KEPT

from ..tensors.images import Picture
from ..tensors.sampling_mask import ROUNDING

GENERATE = "/generate"
"""Path. POST `Asked` as JSON to a generator; replies with the frames of the responses."""
_HEADER = struct.Struct("<IIIIi")
NO_VERSION = -1
"""Weight version of a server that has none of a trainer's; tokens that it sampled are refused."""
_TOKEN_BYTES = 8
_COUNT_BYTES = _ID_BYTES = 4
MOST_TOKENS = 4096
"""Largest number of tokens in a frame; bounds the reader's buffer."""
MOST_ERROR_BYTES = 16 << 10


class AskedImage(BaseModel):
    """An image of a prompt: float32 `patches` [P, D] as base64 of their bytes, little-endian, `grid`, their frames,
    rows and columns, and `start`, the place of its first token."""

    model_config = ConfigDict(frozen=True)

    patches: str
    grid: tuple[int, int, int]
    start: int

    @classmethod
    def of(cls, picture: Picture) -> Self:
        data = picture.patches.contiguous().numpy().astype("<f4", copy=False).tobytes()
        return cls(patches=base64.b64encode(data).decode(), grid=picture.grid, start=picture.start)


class Asked(BaseModel):
    """A request for `n` responses to one prompt of token ids, sampled as vLLM's parameters of the same names say; a
    frame comes after each `stream_interval` tokens."""

    model_config = ConfigDict(frozen=True)

    prompt: Sequence[int]
    n: int = 1
    seed: int | None = None
    temperature: float
    top_p: float
    min_p: float = 0.0
    top_k: int
    min_tokens: int
    max_tokens: int
    stop_token_ids: Sequence[int]
    stop: Sequence[str] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stream_interval: int
    kept: int = 0
    """Above 0: return each token's sampling mask, of at most this many tokens."""
    images: Sequence[AskedImage] = ()
    """Those of the prompt, whose tokens are among its own."""


class Kind(IntEnum):
    """Continuation after a frame's tokens: more of the response (TOKENS), or its end and the reason."""

    TOKENS = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    """The server interrupted the response; another request may continue it."""
    ERROR = 4
    """The request failed; the frame has no tokens."""


_KINDS = tuple(Kind)  # a dict, several times faster than the enum's lookup by value


class Frame(NamedTuple):
    """New tokens of the request's response number `response`, all sampled by weight version `version`: int32 and, in
    nats, float32 arrays of one length. With a sampling mask `counts`, int32 of that length, says how many ids of
    `kept`, int32, belong to each token."""

    response: int
    kind: Kind
    version: int
    tokens: "array[int]"
    logprobs: "array[float]"
    counts: "array[int]" = array("i")
    kept: "array[int]" = array("i")

    def ending(self, count: int) -> "Frame":
        """The first `count` tokens, as the end of the response."""
        counts = self.counts[:count]
        kept_tokens = self.kept[: sum(counts)]
        tokens, logprobs = self.tokens[:count], self.logprobs[:count]
        return Frame(self.response, Kind.STOP, self.version, tokens, logprobs, counts, kept_tokens)


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


def encode(
    index: int,
    kind: Kind,
    version: int,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    kept_tokens: Sequence[Sequence[int]] | None = None,
) -> bytes:
    """A frame, or several if the tokens do not fit; the last has the `kind`. `kept_tokens`: for each token the other
    tokens of its sampling mask.

    Raises ValueError unless there is one log-probability, and with `kept_tokens` one mask, per token.
    """
    if len(tokens) != len(logprobs) or (kept_tokens is not None and len(kept_tokens) != len(tokens)):
        beside = "" if kept_tokens is None else f" and {len(kept_tokens)} sampling masks"
        raise ValueError(f"{len(tokens)} tokens with {len(logprobs)} log-probabilities{beside}")
    frames = list[bytes]()
    for at in range(0, max(1, len(tokens)), MOST_TOKENS):
        last = at + MOST_TOKENS >= len(tokens)
        ids, theirs = array("i", tokens[at : at + MOST_TOKENS]), array("f", logprobs[at : at + MOST_TOKENS])
        arrays: list[array[Any]] = [ids, theirs]
        if kept_tokens is not None:
            masks = kept_tokens[at : at + MOST_TOKENS]
            arrays += [array("i", map(len, masks)), array("i", chain.from_iterable(masks))]
        payload = b"".join(_little(part).tobytes() for part in arrays)
        frames += [
            _HEADER.pack(len(payload), index, kind if last else Kind.TOKENS, len(ids), version),
            payload,
        ]
    return b"".join(frames)


def encode_error(code: int, message: str) -> bytes:
    """The last frame of a failed request."""
    text = message.encode(errors="replace")[: MOST_ERROR_BYTES // 8].decode(errors="ignore")
    payload = json.dumps({"code": code, "message": text}).encode()
    return _HEADER.pack(len(payload), 0, Kind.ERROR, 0, NO_VERSION) + payload


class FrameReader:
    """Parses frames from a byte stream that arrives in pieces of any size."""

    def __init__(self, oldest: int = 0) -> None:
        """`oldest`: the lowest weight version that is one; -1 is that of the weights with which an engine starts."""
        self._rest, self._oldest = b"", oldest

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames that `data` completes.

        Raises:
            RequestFailed: an ERROR frame came.
            ValueError: the header, a token or a log-probability is invalid.
        """
        data, at = self._rest + data if self._rest else data, 0
        while len(data) - at >= _HEADER.size:
            size, index, number, count, version = _HEADER.unpack_from(data, at)
            kind = _kind(size, number, count)
            begin, end = at + _HEADER.size, at + _HEADER.size + size
            if end > len(data):
                break
            at = end
            if kind is Kind.ERROR:
                raise _failure(data[begin:end])
            if count and version < self._oldest:
                raise ValueError(f"{count} tokens of no weight version of a trainer")
            yield _frame(index, kind, version, count, data[begin:end])
        self._rest = data[at:]

    def close(self) -> None:
        """Raises ValueError where the stream ended inside a frame."""
        if self._rest:
            raise ValueError(f"the stream ended {len(self._rest)} bytes into a frame")


def _kind(size: int, number: int, count: int) -> Kind:
    if number >= len(_KINDS):
        raise ValueError(f"unknown kind of frame: {number}")
    kind = _KINDS[number]
    plain, masked = _TOKEN_BYTES * count, (_TOKEN_BYTES + _COUNT_BYTES) * count
    most = MOST_ERROR_BYTES if kind is Kind.ERROR else masked + _ID_BYTES * MOST_KEPT * count
    if count > MOST_TOKENS or size > most:
        raise ValueError(f"a frame of {size} bytes and {count} tokens; one of {kind.name} has at most {most}")
    if kind is not Kind.ERROR and size != plain and (size < masked or size % _ID_BYTES):
        raise ValueError(f"a frame of {size} bytes cannot hold {count} tokens")
    return kind


def _frame(index: int, kind: Kind, version: int, count: int, payload: bytes) -> Frame:
    size = 4 * count
    tokens, logprobs = array("i", payload[:size]), array("f", payload[size : 2 * size])
    counts, kept_tokens = array("i", payload[2 * size : 3 * size]), array("i", payload[3 * size :])
    for ids in (tokens, kept_tokens):
        if ids and (lowest := min(_little(ids))) < 0:
            raise ValueError(f"{lowest} is not a token id")
    if not math.isfinite(sum(_little(logprobs))):
        raise NotFinite("a log-probability is not finite")
    if logprobs and (highest := max(logprobs)) > ROUNDING:
        raise ValueError(f"{highest:g} is not a log-probability: it is above 0")
    if counts and (min(_little(counts)) < 0 or max(counts) > MOST_KEPT or sum(counts) != len(kept_tokens)):
        raise ValueError(f"a sampling mask of {len(kept_tokens)} tokens does not match its counts")
    return Frame(index, kind, version, tokens, logprobs, counts, kept_tokens)


def _failure(payload: bytes) -> RequestFailed:
    try:
        message = _Error.model_validate_json(payload)
    except ValidationError as error:
        raise ValueError(f"an ERROR frame without a valid message: {error}") from None
    return RequestFailed(message.code, message.message)


def _little(values: "array[Any]") -> "array[Any]":
    """Byte-swaps to or from little-endian, in place, on big-endian machines."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
