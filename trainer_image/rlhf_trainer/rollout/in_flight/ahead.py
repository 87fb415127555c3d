"""Episodes requested ahead of training: generators sample the next steps' prompts while the policy trains.

An episode is the responses to one step's prompts, in the run's prompt order. When the generators get weight version h,
the episodes up to h + n are requested, n = `rollout.maxStaleness`. So the oldest token of the episode that version v
trains on was sampled by version v - n or later, whatever happens to the generators: retries are sampled by newer
weights still. Within the window a generator never waits for another one's slowest response. Taking episodes in order
costs nothing: under this bound, every prompt of the first episode must be trained on now.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from rlhf_api.spec import Spec

from ...dispatch.roster import Stopped
from ...tensors.records import Prompt
from ..partial_rollout import Ended, PartialRollout, longest_first, rollouts
from .requests import Requests, Responses

Fresh = Callable[[list[Prompt]], list[PartialRollout]]


class EpisodesAhead:
    """The window: prompts of the episodes that are requested, oldest first, the same on every rank; and on rank 0 their
    responses, in `requests`."""

    def __init__(self, spec: Spec, requests: Requests, fresh: Fresh, ended: Ended, *, asks: bool) -> None:
        """`ended` is called with each response when that has ended; `asks`: on rank 0."""
        self._spec, self._requests, self._fresh, self._ended = spec, requests, fresh, ended
        self._asks = asks
        self._episodes: deque[list[Prompt]] = deque()
        self._restored: dict[str, PartialRollout] = {}
        self._last: tuple[list[Prompt], list[PartialRollout]] = [], []

    def extend(self, version: int, issue: Callable[[], list[Prompt]], *, collected: bool) -> None:
        """Adds the prompts of the steps up to `version` + maxStaleness; `issue` returns those of one step. `collected`:
        the next step has its episode already."""
        self._last = [], []
        most = self._spec.rollout.max_staleness
        while (later := len(self._episodes) + collected) < min(most + 1, self._spec.steps - version):
            self._add(issue(), oldest=version + later - most)

    def wait(self) -> str:
        """Waits, on rank 0, for the responses to the oldest episode's prompts: `responses`, `publish` if no generator
        is left, or `stop`. Raises Unavailable where the generators that respond fail at every prompt."""
        requests, missing = self._requests, [prompt.id for prompt in self._episodes[0]]

        def enough() -> bool:
            while missing and (missing[-1] in requests.answered or missing[-1] in requests.refused):
                missing.pop()
            return not missing

        try:
            return "responses" if requests.until(enough) else "publish"
        except Stopped:
            return "stop"

    def forget_last(self) -> None:
        """The last taken episode was trained on: `put_back` has nothing to return until another is taken."""
        self._last = [], []

    def take(self) -> Responses:
        """Removes the oldest episode; its responses are rank 0's."""
        prompts = self._episodes.popleft()
        self._last = prompts, []
        if not self._asks:
            return Responses()
        requests, ids = self._requests, {prompt.id for prompt in prompts}
        whole = [requests.answered[p.id] for p in prompts if p.id in requests.answered]
        refused = {name: reason for name, reason in requests.refused.items() if name in ids}
        requeued = [name for name in requests.requeued if name in ids]
        requests.forget(ids)
        self._last = prompts, whole
        return Responses(rollouts(whole), requeued, refused)

    def put_back(self) -> None:
        """Returns the last taken episode, which is not trained on now, to the front."""
        prompts, works = self._last
        if prompts:
            self._episodes.appendleft(prompts)
            self._requests.answered |= {work.prompt.id: work for work in works}
        self._last = [], []

    def copy(self) -> list[PartialRollout]:
        """The sampled responses so far, as later tokens do not change them; on the thread that appends to them."""
        works = (*self._requests.works, *self._restored.values())
        return [work.frozen() for work in works if work.prompt.given is None]

    def restore(self, works: list[PartialRollout]) -> None:
        """Responses of a snapshot, whose prompts will be added again."""
        self._restored = {work.prompt.id: work for work in works}

    def _add(self, prompts: list[Prompt], *, oldest: int) -> None:
        """Requests an episode, whose tokens may be of weight version `oldest` and later."""
        self._episodes.append(prompts)
        if self._asks:
            works = [self._begun(work, oldest) for work in self._fresh(prompts)]
            for work, prompt in zip(works, prompts, strict=True):
                work.prompt, work.ended = self._opened(work, prompt), self._ended
                for response in work.responses:
                    if response.end:  # in a snapshot
                        self._ended(work.prompt, response)
            self._requests.answered |= {work.prompt.id: work for work in works if work.is_complete}
            self._requests.waiting += longest_first(work for work in works if not work.is_complete)

    def _opened(self, work: PartialRollout, prompt: Prompt) -> Prompt:
        """The prompt, with the tokens by which an environment opened the responses of `work`, if they are begun."""
        opened = self._spec.environment is not None and work.begun
        return replace(prompt, tokens=work.prompt.tokens) if opened else prompt

    def _begun(self, fresh: PartialRollout, oldest: int) -> PartialRollout:
        """The responses that a snapshot holds of a prompt, to be continued; `fresh` if the job now asks for another
        number of responses, for shorter or younger ones, or for a given one, or the prompt has changed."""
        work, longest = self._restored.pop(fresh.prompt.id, fresh), self._spec.longest_response
        same = self._opened(work, fresh.prompt).tokens == work.prompt.tokens
        same = same and len(work.responses) == len(fresh.responses) and fresh.prompt.given is None
        fits = all(
            len(response.tokens) <= longest and min(response.versions, default=oldest) >= oldest
            for response in work.responses
        )
        return work if same and fits else fresh
