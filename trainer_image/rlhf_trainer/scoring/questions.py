"""One message to a member of the reward or reference role, and the check of its reply."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlhf_api.contract.run import Member
from rlhf_api.errors.problem import InvalidJob, Problem

from ..dispatch.outcomes import Failed
from ..tensors.records import Sequences
from ..tensors.top_tokens import is_valid
from ..transport.http import HttpClient, HttpError
from ..transport.wire import decode, encode
from .messages import pack, places

PAUSE_SECONDS = 1.0
"""Pause after a member's failure, before another is asked."""
REPLY_BYTES, REASON_BYTES, NUMBER_BYTES = 1 << 20, 8 << 10, 8
"""Maximum size of a reply in bytes: base, per response, whose failure it may tell, and per token."""
DTYPES = {
    "scores": torch.float64,
    "token_scores": torch.float64,
    "logprobs": torch.float32,
    "top_logprobs": torch.float32,
}
"""Of the arrays of replies; scores are weighted sums, which float32 may not hold before scale and clip."""
Reply = tuple[Tensor, Mapping[str, Any]]
"""The requested array, and the header."""


@dataclass(eq=False)
class Question:
    """A message for any member of a role, and its `reply`: the named array, which has `width` numbers a place unless
    that is 0, and the header."""

    sequences: Sequences
    array: str
    rows: Sequence[Any] | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    width: int = 0
    reply: "Future[Reply]" = field(default_factory=Future)


@dataclass(frozen=True)
class QuestionClient:
    """Posts messages, and checks the array of each reply. Implements `Client`."""

    http: HttpClient
    route: str

    async def ask(self, member: Member, question: Question, _progress: Any) -> None:
        part, array = question.sequences, question.array
        body = encode(*pack(part, question.rows, **question.header), compress=True)
        most = (
            REPLY_BYTES + REASON_BYTES * len(part) + NUMBER_BYTES * len(part.tokens) * max(1, question.width)
        )
        arrays, header = decode(await self._post(member, body, most), most)
        values = arrays.get(array)
        dtype, count = DTYPES[array], len(places(array, part, torch.arange(len(part))))
        shape = [count, question.width] if question.width else [count]
        if values is None or (values.dtype, list(values.shape)) != (dtype, shape):
            got = "nothing" if values is None else f"{values.dtype} {list(values.shape)}"
            raise Failed(f"the reply's {array} are {dtype} {shape}, not {got}")
        # NaN marks a response without a score; log-probabilities are never NaN.
        if bool(values.isinf().any()) or ("logprobs" in array and bool(values.isnan().any())):
            raise Failed(f"the reply's {array} are not finite")
        if array == "top_logprobs" and not is_valid(values):
            raise Failed(f"the reply's {array} are no log-probabilities of at most 0 with token ids")
        question.reply.set_result((values, header))

    async def listens(self, member: Member) -> bool:
        return await self.http.listens(member.address)

    async def _post(self, member: Member, body: bytes, most: int) -> bytes:
        try:
            return await self.http.post_bytes(member.address + self.route, body, most)
        except HttpError as error:
            if error.status == 422:
                where, _, message = error.body.partition(": ")
                raise InvalidJob([Problem(where, message or error.body)]) from None
            if error.status != 500:  # of the member's work; other ones are a gateway's, or of the request
                raise
            await asyncio.sleep(PAUSE_SECONDS)
            raise Failed(error.body) from None
