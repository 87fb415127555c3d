"""Responses from vLLM servers: a fresh prompt is one streamed request, each response that goes on another, all with
seeds of their own."""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel

from rlhf_api.run import Member
from rlhf_api.spec import Sampling

from ..comms.dispatch import Interrupted, Refused
from ..comms.http import Background, HttpError
from ..weights.members import VERSION_HEADER
from .work import Work

REFUSALS = (400, 413, 422)
"""HTTP codes by which vLLM says that it is the prompt that it cannot respond to."""
STREAM_INTERVAL = 32
"""Tokens of a response between two signs of progress."""
END = b"[DONE]"
ABORTED = "abort"
"""vLLM's reason for a response that it was told to stop working on."""


def request_seed(seed: int, prompt_id: str) -> int:
    """A seed of 31 bits for one prompt's responses, so that they do not depend on what else is in the batch."""
    digest = hashlib.sha256(f"{seed}/{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


class Logprobs(BaseModel):
    """Of the tokens of a `Choice`, in nats."""

    token_logprobs: list[float]


class Choice(BaseModel):
    """New tokens of one response, and with the last of them why it ends."""

    index: int
    token_ids: list[int]
    logprobs: Logprobs
    finish_reason: str | None = None


class Problem(BaseModel):
    """An error after the reply has begun."""

    message: str
    code: int = 500


class Chunk(BaseModel):
    """An event of the stream."""

    choices: list[Choice] = []
    error: Problem | None = None


class VllmClient:
    """Generates with vLLM's completion API. Implements `EngineClient`."""

    def __init__(
        self, http: Background, *, model: str, sampling: Sampling, seed: int, ends: Sequence[int]
    ) -> None:
        """`ends`: the tokens that end a response, see `data.encode.end_tokens`."""
        self._http, self._seed = http, seed
        self._body: dict[str, Any] = {
            "model": model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_tokens": sampling.min_new_tokens,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": list(ends),
            "logprobs": 0,
            "return_token_ids": True,
            "stream": True,
            "stream_interval": STREAM_INTERVAL,
        }

    async def ask(self, member: Member, work: Work, progress: Callable[[], None]) -> Work:
        """Adds to the responses until they are whole: to all of a fresh prompt by one request, else to each of those
        that are not finished by one of its own, whose prompt ends with the tokens that there are."""
        if work.begun:
            parts = [self._continue(member, work, index, progress) for index in work.unfinished]
        else:
            body = self._body | {"seed": request_seed(self._seed, work.prompt.id), "n": len(work.responses)}
            parts = [self._stream(member, work, range(len(work.responses)), body, progress)]
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return work

    async def _continue(self, member: Member, work: Work, index: int, progress: Callable[[], None]) -> None:
        response = work.responses[index]
        so_far = len(response.tokens)
        if so_far >= self._body["max_tokens"]:  # all of it came, and not the reason
            response.finish("length")
            return
        body = self._body | {
            "seed": request_seed(self._seed, f"{work.prompt.id}/{index}/{so_far}"),
            "n": 1,
            "max_tokens": self._body["max_tokens"] - so_far,
            "min_tokens": max(0, self._body["min_tokens"] - so_far),
        }
        await self._stream(member, work, [index], body, progress)

    async def _stream(
        self,
        member: Member,
        work: Work,
        indices: Sequence[int],
        body: Mapping[str, Any],
        progress: Callable[[], None],
    ) -> None:
        """One request, whose choice k is the response `indices[k]`; they have the same tokens so far."""
        url, prompt_id = f"{member.address}/v1/completions", work.prompt.id
        if work.temperature is not None:
            body = {**body, "temperature": work.temperature}
        prompt = [*work.prompt.tokens, *work.responses[indices[0]].tokens]
        version, aborted, ended = _Version(url), False, False
        try:
            async with aclosing(self._http.events(url, {**body, "prompt": prompt}, version.read)) as events:
                async for event in events:
                    if event == END:
                        ended = True
                        continue
                    progress()
                    for choice in _choices(url, event):
                        response = work.responses[indices[choice.index]]
                        response.add(choice.token_ids, choice.logprobs.token_logprobs, version.value)
                        if choice.finish_reason == ABORTED:
                            aborted = True
                        elif choice.finish_reason:
                            response.finish(choice.finish_reason)
        except HttpError as error:
            if error.status in REFUSALS:
                raise Refused(f"HTTP {error.status}: {error.body}") from None
            raise
        except (ValueError, IndexError) as error:
            raise ValueError(f"vLLM's reply to prompt {prompt_id} is not understood: {error}") from error
        unfinished = any(work.responses[index].end is None for index in indices)
        if aborted or (ended and unfinished):  # without a word where the engine had not begun with it
            raise Interrupted
        if unfinished:
            raise ValueError(f"vLLM did not finish its response to prompt {prompt_id}")

    async def listens(self, member: Member) -> bool:
        return await self._http.listens(member.address)


class _Version:
    """The weight version that a reply names in its headers."""

    def __init__(self, url: str) -> None:
        self._url, self.value = url, -1

    def read(self, headers: Mapping[str, str]) -> None:
        """Raises ValueError where it names none."""
        said = headers.get(VERSION_HEADER, "")
        if not said.isdecimal():
            raise ValueError(f"{self._url} names no weight version in {VERSION_HEADER}: {said!r}")
        self.value = int(said)


def _choices(url: str, event: bytes) -> list[Choice]:
    """Raises HttpError where vLLM gave up in the middle, ValidationError for anything that is no event of its."""
    chunk = Chunk.model_validate_json(event)
    if chunk.error is not None:
        raise HttpError(url, chunk.error.code, chunk.error.message)
    return chunk.choices
