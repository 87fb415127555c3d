"""Frames of a response stream: token ids and log-probabilities in binary, from a generator to rank 0.

A frame is a header of five little-endian 32-bit integers, the payload's size in bytes, the response's index among those
of its request, the frame's `Kind`, its number of tokens n and the weight version that sampled them; and then the
payload: n int32 token ids followed by n float32 log-probabilities in nats; of an ERROR, its HTTP code and its message
as JSON. That is 8 bytes a token, where JSON takes 83. With a sampling mask n int32 counts follow, and then that many
int32 ids of other tokens that were kept: 12 bytes a token and 4 for each other one. EXPERTS has no token: its n rows,
see `ExpertsShape`, are what routers chose for the tokens before those of the response's next frame, each once.
"""

import base64
import json
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from ..tensors.expert_rows import ExpertRows
from ..tensors.images import Picture

GENERATE = "/generate"
"""Path. POST `Asked` as JSON to a generator; replies with the frames of the responses."""
HEADER = struct.Struct("<IIIIi")
NO_VERSION = -1
"""Weight version of a server that has none of a trainer's; tokens that it sampled are refused."""
TOKEN_BYTES = 8
COUNT_BYTES = ID_BYTES = 4
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
    structured: dict[str, Any] | None = None
    """Constraint on responses, as `StructuredOutputs` of the manifest, by vLLM's names."""
    constrained: int = 0
    """Number of the prompt's last tokens that belong to the response, and to what it must be."""
    images: Sequence[AskedImage] = ()
    """Those of the prompt, whose tokens are among its own."""
    experts_from: int | None = None
    """Return the experts that routers chose from this token of the prompt on; None: none."""


class Kind(IntEnum):
    """Continuation after a frame's tokens: more of the response (TOKENS), or its end and the reason."""

    TOKENS = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    """The server interrupted the response; another request may continue it."""
    ERROR = 4
    """The request failed; the frame has no tokens."""
    EXPERTS = 5


class Frame(NamedTuple):
    """New tokens of the request's response number `response`, all sampled by weight version `version`: int32 and, in
    nats, float32 arrays of one length. With a sampling mask `counts`, int32 of that length, says how many ids of
    `kept`, int32, belong to each token. `experts`: rows int16 [n, L, K] in parts, those of EXPERTS frames before."""

    response: int
    kind: Kind
    version: int
    tokens: "array[int]"
    logprobs: "array[float]"
    counts: "array[int]" = array("i")
    kept: "array[int]" = array("i")
    experts: Sequence[np.ndarray] = ()

    def ending(self, count: int) -> "Frame":
        """The first `count` tokens, as the end of the response."""
        counts = self.counts[:count]
        kept_tokens = self.kept[: sum(counts)]
        tokens, logprobs = self.tokens[:count], self.logprobs[:count]
        rows = ExpertRows(self.experts)
        rows.cut(len(self.tokens) - count)
        return Frame(
            self.response, Kind.STOP, self.version, tokens, logprobs, counts, kept_tokens, rows.parts
        )


def encode(
    index: int,
    kind: Kind,
    version: int,
    tokens: Sequence[int],
    logprobs: Sequence[float],
    kept_tokens: Sequence[Sequence[int]] | None = None,
    experts: np.ndarray | None = None,
) -> bytes:
    """A frame, or several if the tokens do not fit; the last has the `kind`. `kept_tokens`: for each token the other
    tokens of its sampling mask; `experts`: rows [n, L, K] of the tokens before these, uint8 or uint16.

    Raises ValueError unless there is one log-probability, and with `kept_tokens` one mask, per token.
    """
    if len(tokens) != len(logprobs) or (kept_tokens is not None and len(kept_tokens) != len(tokens)):
        beside = "" if kept_tokens is None else f" and {len(kept_tokens)} sampling masks"
        raise ValueError(f"{len(tokens)} tokens with {len(logprobs)} log-probabilities{beside}")
    frames = list[bytes]()
    for at in range(0, max(1, len(tokens)), MOST_TOKENS):
        frames += _encode_experts(index, rows_between(experts, len(tokens), at, at + MOST_TOKENS))
        last = at + MOST_TOKENS >= len(tokens)
        ids, theirs = array("i", tokens[at : at + MOST_TOKENS]), array("f", logprobs[at : at + MOST_TOKENS])
        arrays: list[array[Any]] = [ids, theirs]
        if kept_tokens is not None:
            masks = kept_tokens[at : at + MOST_TOKENS]
            arrays += [array("i", map(len, masks)), array("i", chain.from_iterable(masks))]
        payload = b"".join(little_endian(part).tobytes() for part in arrays)
        frames += [
            HEADER.pack(len(payload), index, kind if last else Kind.TOKENS, len(ids), version),
            payload,
        ]
    return b"".join(frames)


def rows_between(experts: np.ndarray | None, count: int, begin: int, end: int) -> np.ndarray | None:
    """The rows that go with tokens `begin` to `end` of `count` ones: with each that of the token before it, with the
    first also those of the prompt."""
    if experts is None:
        return None
    ahead = len(experts) - count
    return experts[ahead + begin if begin else 0 : ahead + min(end, count)]


def _encode_experts(index: int, rows: np.ndarray | None) -> Iterator[bytes]:
    if rows is None:
        return
    for at in range(0, len(rows), MOST_TOKENS):
        part = rows[at : at + MOST_TOKENS]
        payload = part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes()
        yield HEADER.pack(len(payload), index, Kind.EXPERTS, len(part), NO_VERSION) + payload


def encode_error(code: int, message: str) -> bytes:
    """The last frame of a failed request."""
    text = message.encode(errors="replace")[: MOST_ERROR_BYTES // 8].decode(errors="ignore")
    payload = json.dumps({"code": code, "message": text}).encode()
    return HEADER.pack(len(payload), 0, Kind.ERROR, 0, NO_VERSION) + payload


def little_endian(values: "array[Any]") -> "array[Any]":
    """Byte-swaps to or from little-endian, in place, on big-endian machines."""
    if sys.byteorder == "big":
        values.byteswap()
    return values
