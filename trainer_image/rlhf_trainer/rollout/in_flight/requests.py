"""Prompts requested from the generators, on rank 0, over several rounds."""

import threading
import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ...dispatch.dispatch import Switches
from ...dispatch.outcomes import UnderWay
from ...dispatch.roster import Stopped, Unavailable
from ...tensors.records import Rollout
from ...weights.publisher import REFUSALS
from ..partial_rollout import PartialRollout
from .rounds import Round

POLL_SECONDS = 0.2
"""Poll interval for a stop request, seconds."""
GRACE_SECONDS = 2.0
"""Seconds to wait for a closing round's last tokens."""

Start = Callable[
    [
        Sequence[PartialRollout],
        Callable[[PartialRollout], None],
        Switches,
        Sequence[UnderWay[PartialRollout, PartialRollout]],
    ],
    "Future[Round]",
]
"""(prompts, callback for each complete one, switches, those of the prompts that an earlier round left under way) -> a
round with the present generators."""


@dataclass(frozen=True)
class Responses:
    """Responses to prompts; the ids of prompts that went to another generator, each as often as that happened; why
    prompts will never have a response, by id; the ids of those that a later step is to ask for again; and of those that
    were stopped, since enough others were complete."""

    rollouts: Sequence[Rollout] = ()
    requeued: Sequence[str] = ()
    refused: dict[str, str] = field(default_factory=dict)
    unanswered: Sequence[str] = ()
    stopped: Sequence[str] = ()


class Requests:
    """Prompts requested round by round, by id: `answered` in the order of completion, `refused` with the reason, and
    `waiting`, not finished by any round so far."""

    def __init__(
        self,
        start: Start,
        failed: Callable[[dict[str, str]], None],
        stop: threading.Event,
        *,
        keep: bool = False,
    ) -> None:
        """`failed` is called with the generators that failed in a round, uid -> reason; `stop` ends every wait. `keep`:
        new weights leave requests under way, and the next round takes them over."""
        self._start, self._failed, self._stop, self._keep = start, failed, stop, keep
        self.waiting: list[PartialRollout] = []
        self.answered: dict[str, PartialRollout] = {}
        self.refused: dict[str, str] = {}
        self.requeued: list[str] = []
        self._round: Future[Round] | None = None
        self._under_way: Sequence[UnderWay[PartialRollout, PartialRollout]] = ()
        self._switches = Switches()
        self._news = threading.Event()
        self._arrivals = self._fruitless = 0
        self._before = 0, 0
        self._idle_since: float | None = None
        self._idle = 0.0

    def begin(self) -> None:
        """Starts a round with all waiting prompts; no other may be running."""
        assert self._round is None
        if not self.waiting:
            return
        self._idle, self._idle_since = self.idle_seconds, None
        self._switches, self._before = Switches(self._keep), self._progress
        self._round = self._start(self.waiting, self._arrived, self._switches, self._under_way)
        self._round.add_done_callback(self._over)

    def until(self, enough: Callable[[], bool]) -> bool:
        """Waits until `enough()` or until no generator is left; returns `enough()`.

        Raises:
            Stopped: the run is to stop.
            Unavailable: the generators that respond fail at every prompt.
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
        """Closes the round, since generators get new weights: prompts that they interrupt from here on wait for the
        next, which takes over those under way that they do not interrupt."""
        self._switches.closing = True
        self._switches.apply()

    def end(self) -> None:
        """Ends the round, whose generators have new weights by now, also those that had failed in it; incomplete
        prompts wait for the next one."""
        if self._round is None:
            return
        self.close()
        with suppress(TimeoutError):
            self._round.result(GRACE_SECONDS)
        self._switches.over = True
        self._settle(replace(self._round.result(), failed={}))

    def stop(self) -> None:
        """Ends the round at once: requests under way are cancelled, and their prompts wait."""
        if self._round is None:
            return
        self._switches.over = True
        self._switches.apply()
        self._settle(self._round.result())

    def forget(self, ids: Set[str]) -> None:
        """Drops prompts that are continued elsewhere."""
        for prompt_id in ids:
            self.answered.pop(prompt_id, None)
        self.waiting = [work for work in self.waiting if work.prompt.id not in ids]
        self.requeued = [prompt_id for prompt_id in self.requeued if prompt_id not in ids]
        self.refused = {
            prompt_id: reason for prompt_id, reason in self.refused.items() if prompt_id not in ids
        }

    def cancel(self) -> None:
        """Cancels the round; tokens so far are kept."""
        if self._round is not None:
            self._round.cancel()

    @property
    def idle_seconds(self) -> float:
        """Total time without any running request, seconds."""
        since = self._idle_since
        return self._idle + (time.monotonic() - since if since is not None else 0.0)

    @property
    def works(self) -> list[PartialRollout]:
        """All prompts that were not refused."""
        return list(({work.prompt.id: work for work in self.waiting} | self.answered).values())

    @property
    def _progress(self) -> tuple[int, int]:
        """Prompts answered so far, and tokens of those under way."""
        responses = (response for work in self.waiting for response in work.responses)
        return self._arrivals, sum(len(response.tokens) for response in responses)

    def _arrived(self, work: PartialRollout) -> None:
        self.answered[work.prompt.id] = work
        self._arrivals += 1
        self._news.set()

    def _over(self, ended: "Future[Round]") -> None:
        """A round has ended, of which nobody has taken the outcome yet."""
        at_work = not ended.cancelled() and not ended.exception() and ended.result().under_way
        if self._round is ended and not at_work:
            self._idle_since = time.monotonic()
        self._news.set()

    def _settle(self, outcome: Round) -> None:
        self._round = None
        if self._idle_since is None and not outcome.under_way:
            self._idle_since = time.monotonic()
        fruitless = outcome.failed and self._progress == self._before
        # A reply may be complete, and the round cut off before it is told. Judged once: those under way go on.
        whole = {work.prompt.id: work for work in outcome.unanswered if work.is_complete}
        self.answered |= whole
        self.waiting = [work for work in outcome.unanswered if work.prompt.id not in whole]
        self._under_way = [each for each in outcome.under_way if each.item.prompt.id not in whole]
        self.refused |= {work.prompt.id: reason for work, reason in outcome.refused}
        self.requeued += [work.prompt.id for work in outcome.requeued]
        self._failed(outcome.failed)
        self._fruitless = self._fruitless + 1 if fruitless else 0
        if self._fruitless == REFUSALS:
            reason = "; ".join(outcome.failed.values())
            raise Unavailable(f"no generator answers: {REFUSALS} times in a row, all failed: {reason}")
