"""Generation ahead of training: generators sample the next steps' prompts while the policy trains.

An episode is the responses to one step's prompts, in the run's prompt order. When the generators get weight version h,
the episodes up to h + n are requested, n = `rollout.maxStaleness`. So the oldest token of the episode that version v
trains on was sampled by version v - n or later, whatever happens to the generators: retries are sampled by newer
weights still. Within the window a generator never waits for another one's slowest response. Taking episodes in order
costs nothing: under this bound, every prompt of the first episode must be trained on now.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import torch

from ..dispatch.roster import Stopped
from ..ranks.context import TrainerContext
from ..tensors.packed import flat_floats, flat_int32s
from ..tensors.records import Prompt
from ..tensors.sampling_mask import filled
from ..transport import wire
from .fleet import Fleet
from .partial_rollout import Ended, PartialRollout, Response, longest_first, nobody, rollouts
from .requests import Requests, Responses

BLOB = "responses-ahead"
"""Blob in a snapshot of the responses, finished or partial, that belong to no episode yet."""


class RolloutsAhead:
    """Episodes requested from the generators, oldest first. Methods are collectives."""

    def __init__(self, ctx: TrainerContext, fleet: Fleet, ended: Ended = nobody) -> None:
        """`ended` is called, on rank 0, with each response when that has ended."""
        self._ctx, self._fleet, self._ended = ctx, fleet, ended
        self._episodes: deque[list[Prompt]] = deque()
        self._restored: dict[str, PartialRollout] = {}
        self._told = 0.0
        self._last: tuple[list[Prompt], list[PartialRollout]] = [], []

    @property
    def _requests(self) -> Requests:
        """Empty except on rank 0."""
        return self._fleet.ahead

    def publish(self, version: int, issue: Callable[[], list[Prompt]], *, collected: bool = False) -> None:
        """New weights: responses under way continue with these, interrupted or not. Then the prompts of the steps up to
        version + maxStaleness are requested; `issue` returns those of one step. `collected`: the next step has its
        episode already."""
        self._last = [], []
        self._renew(version)
        spec = self._ctx.spec
        most = spec.rollout.max_staleness
        while (later := len(self._episodes) + collected) < min(most + 1, spec.steps - version):
            self._add(issue(), oldest=version + later - most)
        self._requests.begin()

    def episode(self) -> Responses:
        """Waits for the responses to the oldest episode's prompts, on rank 0; empty on the others.

        Raises:
            Unavailable: the generators that respond fail at every prompt.
            Stopped: the run is to stop, on every rank.
        """
        prompts = self._episodes[0]
        # The one before was trained on: a stop while this one is waited for does not put it back.
        self._last = [], []
        while (said := self._ctx.ranks.say(lambda: self._wait(prompts))) == "publish":
            self._renew(self._fleet.weights.current)
            self._requests.begin()
        if said == "stop":
            raise Stopped("stopped while the generators were at work")
        self._last = self._episodes.popleft(), []
        return self._take(prompts) if self._ctx.ranks.first else Responses()

    def put_back(self) -> None:
        """Returns the last taken episode, which is not trained on now, to the front."""
        prompts, works = self._last
        if prompts:
            self._episodes.appendleft(prompts)
            self._requests.answered |= {work.prompt.id: work for work in works}
        self._last = [], []

    def figures(self) -> dict[str, float]:
        """Seconds since the last call in which no request was under way; on the other ranks nothing."""
        if not self._ctx.ranks.first:
            return {}
        before, self._told = self._told, self._fleet.idle_seconds
        return {"generators_idle_seconds": self._told - before}

    def blob(self) -> Callable[[], bytes]:
        """Encoder of a snapshot of the episodes' responses so far; on rank 0."""
        assert self._ctx.services is not None

        async def frozen() -> list[PartialRollout]:  # on the thread that appends to them
            return [work.frozen() for work in (*self._requests.works, *self._restored.values())]

        return partial(encode, self._ctx.services.http.run(frozen()))

    def restore(self, data: bytes | None) -> None:
        """Restores a snapshot's responses and adds their prompts again. Raises ValueError for invalid data."""
        self._restored = {work.prompt.id: work for work in (decode(data) if data else ())}

    def _renew(self, version: int) -> None:
        self._fleet.weights.publish(version)
        self._requests.end()

    def _add(self, prompts: list[Prompt], *, oldest: int) -> None:
        """Requests an episode, whose tokens may be of weight version `oldest` and later."""
        self._episodes.append(prompts)
        if self._ctx.ranks.first:
            works = [self._begun(work, oldest) for work in self._fleet.fresh(prompts)]
            for work, prompt in zip(works, prompts, strict=True):
                work.prompt, work.ended = prompt, self._ended
                for response in work.responses:
                    if response.end:  # in a snapshot
                        self._ended(prompt, response)
            self._requests.answered |= {work.prompt.id: work for work in works if work.whole}
            self._requests.waiting += longest_first(work for work in works if not work.whole)

    def _begun(self, fresh: PartialRollout, oldest: int) -> PartialRollout:
        """The responses that a snapshot holds of a prompt, to be continued; `fresh` if the job now asks for another
        number of responses, for shorter or younger ones, or the prompt has changed."""
        work, longest = self._restored.pop(fresh.prompt.id, fresh), self._ctx.spec.sampling.max_new_tokens
        same = work.prompt.tokens == fresh.prompt.tokens and len(work.responses) == len(fresh.responses)
        fits = all(
            len(response.tokens) <= longest and min(response.versions, default=oldest) >= oldest
            for response in work.responses
        )
        return work if same and fits else fresh

    def _wait(self, prompts: list[Prompt]) -> str:
        requests, missing = self._requests, [prompt.id for prompt in prompts]

        def enough() -> bool:
            while missing and (missing[-1] in requests.answered or missing[-1] in requests.refused):
                missing.pop()
            return not missing

        try:
            return "responses" if requests.until(enough) else "publish"
        except Stopped:
            return "stop"

    def _take(self, prompts: list[Prompt]) -> Responses:
        requests, ids = self._requests, {prompt.id for prompt in prompts}
        whole = [requests.answered[p.id] for p in prompts if p.id in requests.answered]
        refused = {name: why for name, why in requests.refused.items() if name in ids}
        requeued = [name for name in requests.requeued if name in ids]
        requests.forget(ids)
        self._last = prompts, whole
        return Responses(rollouts(whole), requeued, refused)


def encode(works: Iterable[PartialRollout]) -> bytes:
    """Responses by the ids of their prompts: int32 `tokens` and `versions` and float32 `logprobs`, end to end; int32
    `prompts`, their tokens, and `kept_counts` and `kept` where tokens have sampling masks."""
    works = list(works)
    responses = [response for work in works for response in work.responses]
    arrays = {
        "tokens": flat_int32s(r.tokens for r in responses),
        "logprobs": flat_floats(r.logprobs for r in responses),
        "versions": flat_int32s(r.versions for r in responses),
        "prompts": flat_int32s(work.prompt.tokens for work in works),
    }
    if any(r.kept_counts for r in responses):
        arrays |= {
            "kept_counts": flat_int32s(filled(r.kept_counts, len(r.tokens)) for r in responses),
            "kept": flat_int32s(r.kept for r in responses),
        }
    said = [[work.prompt.id, [[len(r.tokens), r.end] for r in work.responses]] for work in works]
    return wire.encode(arrays, {"works": said, "prompts": [len(work.prompt.tokens) for work in works]})


def decode(data: bytes) -> list[PartialRollout]:
    """Inverse of `encode`; prompts have ids and tokens only, in data of an earlier release ids alone. Raises ValueError
    for invalid data."""
    arrays, header = wire.decode(data)
    lengths = header.get("prompts", [0] * len(header["works"]))
    prompts = arrays.get("prompts", torch.zeros(0)).split(lengths)
    at, kept_at, works = 0, 0, list[PartialRollout]()
    counts, kept = (arrays.get(name, torch.zeros(0)).tolist() for name in ("kept_counts", "kept"))
    for (prompt_id, responses), prompt in zip(header["works"], prompts, strict=True):
        work = PartialRollout(Prompt(prompt_id, tuple(prompt.tolist()), {}), [])
        for length, end in responses:
            tokens, logprobs, versions = (
                array(kind, arrays[name][at : at + length].tolist())
                for name, kind in (("tokens", "i"), ("logprobs", "f"), ("versions", "i"))
            )
            own = array("i", counts[at : at + length])
            size = sum(count for count in own if count > 0)
            masks = array("i", kept[kept_at : kept_at + size])
            work.responses.append(Response(tokens, logprobs, versions, end, own, masks))
            at, kept_at = at + length, kept_at + size
        works.append(work)
    return works
