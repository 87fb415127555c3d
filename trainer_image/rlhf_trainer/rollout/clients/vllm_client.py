"""Client of vLLM servers: one streamed request for a fresh prompt, and one for each continued response, each with its
own seed."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from rlhf_api.contract.run import Member
from rlhf_api.host.tasks import run_together
from rlhf_api.sections.sampling import Sampling

from ...data.stop_strings import StopStrings
from ...dispatch.outcomes import Failed, Interrupted, Refused
from ...tensors.expert_rows import ExpertsShape
from ...transport.frame_reader import FrameReader, NotFinite, RequestFailed
from ...transport.frames import GENERATE, Asked, AskedImage, Frame, Kind
from ...transport.http import HttpClient, HttpError
from ..partial_rollout import PartialRollout, Response
from .frame_checks import check_frame, check_routed
from .thought_budget import ThoughtBudget

REFUSING_CODES = (400, 413, 422)
"""HTTP codes with which a server refuses a prompt itself."""
STREAM_INTERVAL = 64
"""Tokens of a response per frame: the cost of a frame on rank 0 is shared by so many."""


def is_refusal(reason: str) -> bool:
    """True for the reason of a prompt that a server refused itself, and that it would refuse again."""
    return reason.startswith(tuple(f"HTTP {code}: " for code in REFUSING_CODES))


def request_seed(seed: int, prompt_id: str) -> int:
    """A 31-bit seed for one prompt's responses, which makes them independent of the batch."""
    digest = hashlib.sha256(f"{seed}/{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


class VllmClient:
    """Generates through the path that our extension adds to vLLM, see `transport.frames`. Implements `EngineClient`."""

    def __init__(
        self,
        http: HttpClient,
        *,
        sampling: Sampling,
        seed: int,
        ends: Sequence[int],
        stops: StopStrings | None = None,
        vocabulary: int = 1 << 31,
        stream_interval: int = STREAM_INTERVAL,
        oldest_version: int = 0,
        experts: ExpertsShape | None = None,
        thought: ThoughtBudget | None = None,
    ) -> None:
        """`ends`: end tokens, see `data.encode.end_tokens`; `stops`: stop strings; `vocabulary`: number of tokens that
        the policy has embeddings for; `stream_interval`: tokens of a response per frame; `oldest_version`: as
        `FrameReader.oldest`; `experts`: of rows to ask for, where training replays them; `thought`: of responses of one
        turn."""
        self._http, self._seed, self._stops, self._thought = http, seed, stops, thought
        self._vocabulary, self._oldest_version, self._experts = vocabulary, oldest_version, experts
        self._base_request = Asked(
            prompt=(),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            top_k=sampling.top_k,
            min_tokens=sampling.min_new_tokens,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=ends,
            stop=stops.strings if stops else (),
            stream_interval=stream_interval,
            kept=sampling.mask_size,
            structured=_constraint(sampling),
        )

    async def ask(self, member: Member, work: PartialRollout, progress: Callable[[], None]) -> PartialRollout:
        """Extends the responses until they are complete: one request for all responses to a fresh prompt, else one for
        each unfinished response, with the tokens so far appended to its prompt; and one more after its thought's
        budget."""
        going_on = work.unfinished
        if not work.begun:
            await self._begin(member, work, progress)
            going_on = [
                index for index in work.unfinished if self._continues_at_budget(work, work.responses[index])
            ]
        await run_together([self._continue(member, work, index, progress) for index in going_on])
        if not work.is_complete:  # told once all have their last tokens
            raise Interrupted
        return work

    async def _begin(self, member: Member, work: PartialRollout, progress: Callable[[], None]) -> None:
        most = self._limit(work, work.responses[0])
        changes = {
            "seed": request_seed(self._seed, work.prompt.id),
            "n": len(work.responses),
            "max_tokens": most,
            "min_tokens": min(self._base_request.min_tokens, most),
        }
        request = self._base_request.model_copy(update=changes)
        await self._stream(member, work, range(len(work.responses)), request, progress)

    async def _continue(
        self, member: Member, work: PartialRollout, index: int, progress: Callable[[], None]
    ) -> None:
        response = work.responses[index]
        if work.penalties.presence or work.penalties.frequency:
            # Penalties count the turn's tokens, but the server would treat these as part of the prompt.
            response.cut(response.turn_start)
        if self._thought is not None and self._thought.is_reached(response):
            self._thought.close(work.prompt, response)
        so_far, most = len(response.tokens), self._limit(work, response)
        if so_far >= most:  # all tokens came, but not the finish reason
            response.finish("length")
            work.ended(work.prompt, response)
            return
        changes = {
            "seed": request_seed(self._seed, f"{work.prompt.id}/{index}/{so_far}"),
            "max_tokens": most - so_far,
            "min_tokens": min(
                max(0, self._base_request.min_tokens - so_far + self._turn_start(response)), most - so_far
            ),
            "constrained": so_far - self._turn_start(response),
        }
        await self._stream(member, work, [index], self._base_request.model_copy(update=changes), progress)
        if so_far < len(response.tokens) and self._continues_at_budget(work, response):
            await self._continue(member, work, index, progress)

    def _continues_at_budget(self, work: PartialRollout, response: Response) -> bool:
        """True at the budget of the thought, unless the round is closed: the next one goes on then."""
        return self._is_at_budget(response) and not work.closing()

    def _is_at_budget(self, response: Response) -> bool:
        return self._thought is not None and self._thought.is_reached(response)

    def _turn_start(self, response: Response) -> int:
        """Number of tokens before the present turn, which a closed thought does not begin."""
        return response.turn_start if self._thought is None else 0

    def _limit(self, work: PartialRollout, response: Response) -> int:
        """Most tokens that a response has at the end of its present request."""
        if self._thought is not None and len(response.tokens) < self._thought.tokens:
            return self._thought.tokens
        longest = self._base_request.max_tokens
        return longest if self._thought is not None else work.turn_end(response, longest)

    async def _stream(
        self,
        member: Member,
        work: PartialRollout,
        indices: Sequence[int],
        request: Asked,
        progress: Callable[[], None],
    ) -> None:
        """One request, whose k-th response is the response `indices[k]`; they share the tokens so far."""
        url, prompt_id = member.address + GENERATE, work.prompt.id
        first = work.responses[indices[0]]
        begun, before, most = len(first.tokens), first.before(work.prompt), self._limit(work, first)
        changes: dict[str, object] = {
            "prompt": before,
            "images": tuple(map(AskedImage.of, work.prompt.pictures)),
        }
        if work.temperature is not None:
            changes["temperature"] = work.temperature
        changes |= {f"{name}_penalty": value for name, value in work.penalties._asdict().items()}
        shape = self._experts if work.masks else None
        if not work.masks:
            changes["kept"] = 0
        if shape is not None:
            ahead = len(work.prompt.tokens) + begun - len(before)  # of the last branch
            first.experts.fill(ahead, (shape.layers, shape.chosen))
            changes["experts_from"] = len(first.experts) - ahead
        request = request.model_copy(update=changes)
        body = request.model_dump()
        longest = len(before) + request.max_tokens
        reader = FrameReader(self._oldest_version, shape, longest * len(indices))
        try:
            async with aclosing(self._http.stream(url, body)) as parts:
                async for part in parts:
                    progress()
                    for frame in reader.feed(part):
                        response = work.responses[indices[frame.response]]
                        last = self._completing(work.prompt.tokens, response, frame, begun)
                        self._add(response, last or frame, most, masked=request.kept > 0)
                        if shape is not None and frame.tokens:
                            check_routed(work.prompt.tokens, response)
                        if response.end:
                            work.ended(work.prompt, response)
                        if last:
                            return  # the server, which sees only its own part of the stop string, would continue
            reader.close()
        except (RequestFailed, HttpError) as error:
            failed = error if isinstance(error, HttpError) else HttpError(url, error.code, str(error))
            if failed.status in REFUSING_CODES:
                raise Refused(f"HTTP {failed.status}: {failed.body}") from None
            raise failed from None
        except NotFinite as error:
            raise Failed(f"the engine failed at a response: {error}") from None
        except (ValueError, IndexError) as error:
            raise ValueError(f"the reply to prompt {prompt_id} is malformed: {error}") from error

    def _completing(
        self, prompt: Sequence[int], response: Response, frame: Frame, begun: int
    ) -> Frame | None:
        """The start of a frame up to the token that completes a stop string whose first characters were sampled before
        this request, in the same turn; `begun`: tokens of the response before this request. None if there is none."""
        start = self._turn_start(response)
        if self._stops is None or begun <= start:
            return None
        before = (*prompt, *response.tokens[:start]) if start else prompt
        there, tokens = len(response.tokens) - start, list(response.tokens[start:])
        for count in range(1, min(len(frame.tokens), begun - start + self._stops.window - there) + 1):
            tokens.append(frame.tokens[count - 1])
            if (
                there + count > self._base_request.min_tokens
                and self._stops.ending(before, tokens) is not None
            ):
                return frame.ending(count)
        return None

    def _add(self, response: Response, frame: Frame, most: int, *, masked: bool) -> None:
        """Appends a frame's tokens, whose end is the response's but at the budget of its thought."""
        check_frame(response, frame, most, self._vocabulary, masked=masked)
        experts = frame.experts if frame.tokens else ()  # a response that is not begun has none of the prompt
        response.add(frame.tokens, frame.logprobs, frame.version, frame.counts, frame.kept, experts)
        if frame.kind is Kind.STOP or (frame.kind is Kind.LENGTH and not self._is_at_budget(response)):
            response.finish(frame.kind.name.lower())

    async def listens(self, member: Member) -> bool:
        return await self._http.listens(member.address)


def _constraint(sampling: Sampling) -> dict[str, Any] | None:
    """The constraint on responses, by vLLM's names."""
    if sampling.structured_outputs is None:
        return None
    given = sampling.structured_outputs.model_dump(exclude_none=True)
    return {{"json_schema": "json"}.get(name, name): value for name, value in given.items()}
