"""Rewards from an HTTP service: posts several responses per request, and validates the reply."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host import strict_json
from rlhf_api.numbers import LARGEST_SCORE
from rlhf_api.sections.reward import ScoreFunction

from ..transport.replies import PLAIN, read_reply, read_start, retry_after
from .samples import Result, Sample, even_calls, failed

LARGEST_REPLY, LARGEST_RESULT, LARGEST_NUMBER = 16 << 10, 2 << 10, 32
"""Maximum size of a reply in bytes: base, per response, and per token that may have a score."""
QUOTED = 200
"""Characters of an error's body to quote."""


BUSY = (429, 503)
"""Statuses whose `Retry-After` is obeyed."""


class _Busy(ValueError):
    """The service asks not to be called for so many `seconds`."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(f"{reason} (Retry-After: {seconds:.0f} s)")
        self.seconds = seconds


class _Message(BaseModel):
    """Base of the service's messages; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST_SCORE, le=LARGEST_SCORE)]


class ServiceResult(_Message):
    """A response's score, its tokens' scores, or the error."""

    score: Number | None = None
    token_scores: list[Number] | None = None
    error: str | None = None


class ServiceReply(_Message):
    """One result for each response, in order."""

    results: list[ServiceResult]


async def start(where: str, entry: ScoreFunction) -> "HttpService":
    """The service at `entry.url`. Raises InvalidJob where the environment lacks a header's value."""
    assert entry.url is not None, "an entry of this kind"
    secrets = secret_headers(f"{where}.secretHeaders", entry.secret_headers, os.environ)
    return HttpService(
        entry.url, concurrency=entry.concurrency, timeout=entry.timeout_seconds, secrets=secrets
    )


class HttpService:
    """Posts `{"responses": [{"prompt", "response", "row"}]}`, with `tokens` if tokens may have scores, and reads a
    `ServiceReply`. Implements `Scorer`.

    Redirects are not followed and nothing is decompressed; a reply has a maximum size, and one deadline in all. A
    service that says when it may be called again (`Retry-After`) is not called before.
    """

    def __init__(
        self, url: str, *, concurrency: int, timeout: float, secrets: Mapping[str, str] | None = None
    ) -> None:
        """`secrets`: headers whose values are redacted wherever the service repeats them."""
        self.concurrency = concurrency
        self._url, self._timeout, self._secrets = url, timeout, dict(secrets or {})
        self._open_at, self._busy = 0.0, ""

    def size(self, count: int) -> int:
        """Splits a batch evenly into as many calls as may run at once."""
        return even_calls(count, self.concurrency)

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        if (left := self._open_at - time.monotonic()) > 0:
            return [failed(self._busy, left)] * len(samples)
        try:
            async with asyncio.timeout(self._timeout):
                return _results(await self._post(samples), samples, self._without_secrets)
        except TimeoutError:
            failure = failed(f"{self._url}: no reply within {self._timeout:g} s")
        except _Busy as error:
            self._open_at, self._busy = time.monotonic() + error.seconds, f"{self._url}: {error}"
            failure = failed(self._busy, error.seconds)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = failed(f"{self._url}: {error or type(error).__name__}")
        return [failure] * len(samples)

    async def _post(self, samples: Sequence[Sample]) -> bytes:
        """The reply's body. Raises ValueError for a reply that is not 200, and aiohttp.ClientError for one that is too
        large."""
        responses = [
            {"prompt": s.prompt, "response": s.response, "row": s.row}
            | ({} if s.tokens is None else {"tokens": s.tokens})
            for s in samples
        ]
        body = strict_json.dumps({"responses": responses}).encode()
        headers = PLAIN | {"Content-Type": "application/json", **self._secrets}
        # A session per call: its event loop is the role's, and a connection costs little compared with a batch.
        async with (
            aiohttp.ClientSession(
                auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
            ) as session,
            session.post(self._url, data=body, headers=headers, allow_redirects=False) as reply,
        ):
            if reply.status != 200:
                text = (await read_start(reply, LARGEST_REPLY)).decode(errors="replace")
                reason = f"HTTP {reply.status}: {self._without_secrets(text)[:QUOTED]}"
                seconds = retry_after(reply.headers.get("Retry-After", ""), time.time())
                raise _Busy(reason, seconds) if reply.status in BUSY and seconds else ValueError(reason)
            numbers = sum(len(s.tokens or ()) for s in samples)
            most = LARGEST_REPLY + LARGEST_RESULT * len(samples) + LARGEST_NUMBER * numbers
            return await read_reply(reply, most)

    def _without_secrets(self, text: str) -> str:
        """The service's text with the secrets redacted, for logs."""
        for value in self._secrets.values():
            for secret in (value, value.rpartition(" ")[2]):  # Bearer TOKEN, and TOKEN alone
                for written in (secret, json.dumps(secret)[1:-1]):
                    text = text.replace(written, "***")
        return text


def secret_headers(
    where: str, variables: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The headers' values from environment variables. Raises InvalidJob, which quotes no value."""
    headers, problems = dict[str, str](), list[Problem]()
    for header, variable in variables.items():
        value = environment.get(variable, "").strip()  # a Secret made from a file ends with a newline
        if not value:
            message = (
                f"the reward role's environment has no {variable}; on a cluster name a Secret that has it in"
            )
            problems.append(Problem(f"{where}.{header}", f"{message} spec.reward.pods.secrets"))
        elif not (value.isascii() and value.isprintable()):
            message = (
                f"the value of {variable} cannot be a header: it has characters other than printable ASCII"
            )
            problems.append(Problem(f"{where}.{header}", message))
        headers[header] = value
    if problems:
        raise InvalidJob(problems)
    return headers


def _results(body: bytes, samples: Sequence[Sample], redacted: Callable[[str], str] = str) -> list[Result]:
    """Parses the body into results, the service's errors `redacted`. Raises ValueError if it does not match these
    responses."""
    try:
        reply = ServiceReply.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"the reply is not as documented: {where}: {first['msg']}") from None
    if len(reply.results) != len(samples):
        raise ValueError(f"{len(reply.results)} results for {len(samples)} responses")
    return [_result(*pair, redacted) for pair in zip(reply.results, samples, strict=True)]


def _result(result: ServiceResult, sample: Sample, redacted: Callable[[str], str]) -> Result:
    if result.error is not None:
        return failed(redacted(result.error))
    of_tokens = result.token_scores
    if of_tokens is None:
        return failed("neither a score nor an error") if result.score is None else result.score
    if result.score is not None:
        return failed("both score and token_scores")
    if sample.tokens is None:
        return failed("token_scores, which need spec.reward.fineGrained: true")
    if len(of_tokens) != len(sample.tokens):
        return failed(f"{len(of_tokens)} token_scores for a response of {len(sample.tokens)} tokens")
    return of_tokens
