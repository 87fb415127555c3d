"""Prompts with the generators, on rank 0: over as many rounds of requests as it takes."""

import threading
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from ..comms.dispatch import Switches
from ..comms.roster import Stopped, Unavailable
from ..records import Rollout
from .dispatch import Round
from .work import Work

POLL_SECONDS = 0.2
"""Between two looks for a request to stop."""
GRACE_SECONDS = 2.0
"""Deadline of a round that closes: the last tokens of generators that took new weights come within it."""
REFUSALS = 3
"""Refusals of weights, or rounds that fail at every prompt, by generators that live, after which the run fails."""

Start = Callable[[Sequence[Work], Callable[[Work], None], Switches], "Future[Round]"]
"""(prompts, what is called with each one that is whole, switches) -> a round with the generators of this moment."""


@dataclass(frozen=True)
class Responses:
    """Responses to prompts; the ids of prompts that went to another generator, each as often as that happened; and why
    prompts will never have a response, by id."""

    rollouts: Sequence[Rollout] = ()
    requeued: Sequence[str] = ()
    refused: dict[str, str] = field(default_factory=dict)


class Requests:
    """Works that are asked for, round by round: by the ids of their prompts `answered`, in the order in which they
    became whole, and `refused` with the reason; and `waiting`, those that no round has finished."""

    def __init__(self, start: Start, failed: Callable[[dict[str, str]], None], stop: threading.Event) -> None:
        """`failed` is told which generators failed in a round, by uid; `stop` ends every wait."""
        self._start, self._failed, self._stop = start, failed, stop
        self.waiting: list[Work] = []
        self.answered: dict[str, Work] = {}
        self.refused: dict[str, str] = {}
        self.requeued: list[str] = []
        self._round: Future[Round] | None = None
        self._switches = Switches()
        self._news = threading.Event()
        self._arrivals = self._before = self._fruitless = 0
        self._idle_since: float | None = None
        self._idle = 0.0
        self.continued = 0
        """Responses that were begun in one round and continued in another."""

    def begin(self) -> None:
        """A round with all that is waiting; none may be under way."""
        assert self._round is None
        self.waiting = [work for work in self.waiting if not work.whole]
        if not self.waiting:
            return
        self.continued += sum(len(work.unfinished) for work in self.waiting if work.begun)
        self._idle, self._idle_since = self.idle_seconds, None
        self._switches, self._before = Switches(), self._arrivals
        self._round = self._start(self.waiting, self._arrived, self._switches)
        self._round.add_done_callback(lambda _: self._news.set())

    def until(self, enough: Callable[[], bool]) -> bool:
        """Waits until `enough` is true, or nobody is left to ask; returns whether it is.

        Raises:
            Stopped: the run is to stop.
            Unavailable: generators come, and fail at every prompt.
        """
        while not enough():
            if self._stop.is_set():
                raise Stopped("stopped while the generators were at work")
            if self._round is None:
                return False
            if self._round.done():
                self._settle(self._round.result())
                if self._switches.closing:  # the generators have new weights
                    self.begin()
                continue
            self._news.wait(POLL_SECONDS)
            self._news.clear()
        return True

    def close(self) -> None:
        """From here on generators that stop working on prompts do so for new weights, and get no more."""
        self._switches.closing = True

    def end(self) -> None:
        """The end of the round, whose generators have new weights; what is not whole waits for another one."""
        if self._round is None:
            return
        self.close()
        with suppress(TimeoutError):
            self._round.result(GRACE_SECONDS)
        self._switches.over = True
        self._settle(self._round.result())

    def forget(self, ids: Set[str]) -> None:
        """Prompts that somebody else goes on with."""
        for prompt_id in ids:
            self.answered.pop(prompt_id, None)
        self.waiting = [work for work in self.waiting if work.prompt.id not in ids]
        self.requeued = [prompt_id for prompt_id in self.requeued if prompt_id not in ids]
        self.refused = {prompt_id: why for prompt_id, why in self.refused.items() if prompt_id not in ids}

    def cancel(self) -> None:
        """Gives up the round; what came of its prompts stays with them."""
        if self._round is not None:
            self._round.cancel()

    @property
    def idle_seconds(self) -> float:
        """Time without any request under way, so far."""
        since = self._idle_since
        return self._idle + (time.monotonic() - since if since is not None else 0.0)

    @property
    def works(self) -> list[Work]:
        """All that are not refused."""
        return list(({work.prompt.id: work for work in self.waiting} | self.answered).values())

    def _arrived(self, work: Work) -> None:
        self.answered[work.prompt.id] = work
        self._arrivals += 1
        if self._arrivals - self._before == len(self.waiting):
            self._idle_since = time.monotonic()
        self._news.set()

    def _settle(self, outcome: Round) -> None:
        self._round = None
        if self._idle_since is None:
            self._idle_since = time.monotonic()
        self.waiting = list(outcome.unanswered)
        self.refused |= {work.prompt.id: why for work, why in outcome.refused}
        self.requeued += [work.prompt.id for work in outcome.requeued]
        self._failed(outcome.failed)
        self._fruitless = self._fruitless + 1 if outcome.failed and self._arrivals == self._before else 0
        if self._fruitless == REFUSALS:
            why = "; ".join(outcome.failed.values())
            raise Unavailable(f"no generator answers: {REFUSALS} times in a row, all failed: {why}")
