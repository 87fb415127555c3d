"""Answers from the generators: each prompt is one request, and goes to another generator if its own dies."""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import aiohttp

from rlhf_api.run import Member
from rlhf_api.spec import Sampling

from ..http import Background, HttpError
from ..records import Prompt, Rollout

log = logging.getLogger(__name__)


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

    def generate(
        self, prompts: Sequence[Prompt], members: Sequence[Member], version: int
    ) -> tuple[list[Rollout], list[Prompt], list[Member]]:
        """The answers, prompt by prompt in the order given; the prompts left over because every member failed;
        and the members that failed. `version` is the weight version that all members serve."""
        return self._http.run(self._generate(list(prompts), list(members), version))

    async def _generate(
        self, prompts: list[Prompt], members: list[Member], version: int
    ) -> tuple[list[Rollout], list[Prompt], list[Member]]:
        waiting = deque(enumerate(prompts))
        answers: dict[int, list[Rollout]] = {}
        failed: dict[str, Member] = {}

        async def work(member: Member) -> None:
            while waiting and member.uid not in failed:
                place, prompt = waiting.popleft()
                try:
                    answers[place] = await self._answer(member, prompt, version)
                except (aiohttp.ClientError, TimeoutError, HttpError, OSError) as error:
                    # Requeued, first in line: no prompt is lost and none is scored as if it had no answer.
                    waiting.appendleft((place, prompt))
                    if isinstance(error, HttpError) and 400 <= error.status < 500:
                        raise
                    if failed.setdefault(member.uid, member) is member:
                        log.warning("%s failed (%r); its prompts go to the others", member.name, error)

        while waiting and (alive := [m for m in members if m.uid not in failed]):
            await asyncio.gather(*(work(m) for m in alive for _ in range(self._concurrent)))
        done = [rollout for place in sorted(answers) for rollout in answers[place]]
        return done, [prompt for _, prompt in sorted(waiting, key=lambda w: w[0])], list(failed.values())

    async def _answer(self, member: Member, prompt: Prompt, version: int) -> list[Rollout]:
        body = self._body | {"prompt": list(prompt.tokens), "seed": request_seed(self._seed, prompt.id)}
        answer = await self._http.json(
            "POST", f"{member.address}/v1/completions", body, timeout=self._timeout
        )
        return [
            rollout(prompt, choice, version) for choice in sorted(answer["choices"], key=lambda c: c["index"])
        ]


def rollout(prompt: Prompt, choice: dict[str, Any], version: int) -> Rollout:
    """One choice of vLLM's answer. Raises ValueError where it lacks tokens or their log-probabilities."""
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
