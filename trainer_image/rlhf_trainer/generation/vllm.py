"""Answers from vLLM servers: each prompt is one request, with a seed of its own."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import aiohttp

from rlhf_api.run import HEALTH, Member
from rlhf_api.spec import Sampling

from ..comms.http import Background, HttpError
from ..records import Prompt, Rollout
from .dispatch import Current, Dispatch, Outcome

PROBE_SECONDS = 2.0


def request_seed(seed: int, prompt_id: str) -> int:
    """A seed of 31 bits for one prompt's answers, so that they do not depend on what else is in the batch."""
    digest = hashlib.sha256(f"{seed}/{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


class VllmClient:
    """Generates with vLLM's completion API."""

    def __init__(
        self,
        http: Background,
        *,
        model: str,
        sampling: Sampling,
        seed: int,
        eos: int,
        concurrent: int,
        timeout: float,
    ) -> None:
        """`concurrent`: requests in flight for each generator; `timeout`: seconds one answer may take."""
        self._http, self._concurrent, self._timeout, self._seed = http, concurrent, timeout, seed
        self._body = {
            "model": model,
            "n": sampling.answers_per_prompt,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_tokens": sampling.min_new_tokens,
            "max_tokens": sampling.max_new_tokens,
            "stop_token_ids": [eos],
            "logprobs": 0,
            "return_token_ids": True,
        }

    def start(
        self,
        prompts: Sequence[Prompt],
        members: Sequence[Member],
        version: int,
        *,
        current: Current,
        left: Callable[[int], None] = lambda _count: None,
        arrived: Callable[[list[Rollout]], None] = lambda _answers: None,
    ) -> "Future[Outcome]":
        """Asks `members`, all of which serve weight version `version`, on the thread of `http`; see `Dispatch`."""

        async def ask(member: Member, prompt: Prompt) -> list[Rollout]:
            return await self._answer(member, prompt, version)

        async def run() -> Outcome:
            return await Dispatch(
                prompts,
                members,
                ask=ask,
                listens=self._listens,
                current=current,
                concurrent=self._concurrent,
                left=left,
                arrived=arrived,
            ).run()

        return self._http.start(run())

    async def _listens(self, member: Member) -> bool:
        """False only where a connection is refused: who is busy may answer late."""
        try:
            await self._http.json("GET", member.address + HEALTH, timeout=PROBE_SECONDS)
        except aiohttp.ClientConnectorError:
            return False
        except (HttpError, TimeoutError, aiohttp.ClientError, ValueError):
            pass
        return True

    async def _answer(self, member: Member, prompt: Prompt, version: int) -> list[Rollout]:
        body = self._body | {"prompt": list(prompt.tokens), "seed": request_seed(self._seed, prompt.id)}
        answer = await self._http.json(
            "POST", f"{member.address}/v1/completions", body, timeout=self._timeout
        )
        choices = sorted(answer["choices"], key=lambda c: c["index"])
        if len(choices) != body["n"]:
            raise ValueError(f"vLLM gave {len(choices)} of {body['n']} answers to prompt {prompt.id}")
        return [rollout(prompt, choice, version) for choice in choices]


def rollout(prompt: Prompt, choice: dict[str, Any], version: int) -> Rollout:
    """One choice of vLLM's answer.

    Raises ValueError where it is cut off, as by a server that ends, or lacks tokens or their log-probabilities.
    """
    if choice["finish_reason"] not in ("stop", "length"):
        raise ValueError(f"vLLM did not finish its answer to prompt {prompt.id}: {choice['finish_reason']!r}")
    tokens, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    if not tokens or not logprobs or len(tokens) != len(logprobs):
        raise ValueError(
            f"vLLM answered prompt {prompt.id} without tokens or their log-probabilities: {choice!r:.300}"
        )
    return Rollout(
        prompt=prompt,
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        versions=(version,) * len(tokens),
        finished=choice["finish_reason"] == "stop",
    )
