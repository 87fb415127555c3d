"""Responses from vLLM servers: each prompt is one streamed request, with a seed of its own."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from rlhf_api.run import Member
from rlhf_api.spec import Sampling

from ..comms.dispatch import Refused
from ..comms.http import Background, HttpError
from ..records import Prompt, Rollout

REFUSALS = (400, 413, 422)
"""HTTP codes by which vLLM says that it is the prompt that it cannot respond to."""
STREAM_INTERVAL = 32
"""Tokens of a response between two signs of progress."""
END = b"[DONE]"


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


@dataclass
class Response:
    """What has come of one response."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, choice: Choice) -> None:
        self.tokens += choice.token_ids
        self.logprobs += choice.logprobs.token_logprobs
        self.finish_reason = choice.finish_reason or self.finish_reason


class VllmClient:
    """Generates with vLLM's completion API. Implements `EngineClient`."""

    def __init__(
        self, http: Background, *, model: str, sampling: Sampling, seed: int, ends: Sequence[int]
    ) -> None:
        """`ends`: the tokens that end a response, see `data.encode.end_tokens`."""
        self._http, self._seed = http, seed
        self._body: dict[str, Any] = {
            "model": model,
            "n": sampling.answers_per_prompt,
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

    async def ask(
        self, member: Member, prompt: Prompt, version: int, progress: Callable[[], None]
    ) -> list[Rollout]:
        body = self._body | {"prompt": list(prompt.tokens), "seed": request_seed(self._seed, prompt.id)}
        url = f"{member.address}/v1/completions"
        responses = [Response() for _ in range(body["n"])]
        try:
            async with aclosing(self._http.events(url, body)) as events:
                async for event in events:
                    if event != END:
                        progress()
                        for choice in _choices(url, event):
                            responses[choice.index].add(choice)
        except HttpError as error:
            if error.status in REFUSALS:
                raise Refused(f"HTTP {error.status}: {error.body}") from None
            raise
        except (ValidationError, IndexError) as error:
            raise ValueError(f"vLLM's reply to prompt {prompt.id} is not understood: {error}") from error
        return [rollout(prompt, response, version) for response in responses]

    async def listens(self, member: Member) -> bool:
        return await self._http.listens(member.address)


def rollout(prompt: Prompt, response: Response, version: int) -> Rollout:
    """Raises ValueError where the response is cut off, as by a server that ends, or lacks tokens or their
    log-probabilities."""
    if response.finish_reason not in ("stop", "length"):
        raise ValueError(
            f"vLLM did not finish its response to prompt {prompt.id}: {response.finish_reason!r}"
        )
    tokens, logprobs = response.tokens, response.logprobs
    if not tokens or len(tokens) != len(logprobs):
        raise ValueError(
            f"vLLM's response to prompt {prompt.id} has {len(tokens)} tokens and {len(logprobs)} log-probabilities"
        )
    return Rollout(
        prompt=prompt,
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        versions=(version,) * len(tokens),
        finished=response.finish_reason == "stop",
    )


def _choices(url: str, event: bytes) -> list[Choice]:
    """Raises HttpError where vLLM gave up in the middle, ValidationError for anything that is no event of its."""
    chunk = Chunk.model_validate_json(event)
    if chunk.error is not None:
        raise HttpError(url, chunk.error.code, chunk.error.message)
    return chunk.choices
