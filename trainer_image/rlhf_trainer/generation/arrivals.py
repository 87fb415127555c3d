"""Responses on their way from the thread that asks to the thread that trains."""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ..comms.roster import Stopped
from ..records import Rollout

POLL_SECONDS = 0.2
"""How soon a request to stop is noticed."""


@dataclass(frozen=True)
class Responses:
    """Responses to prompts; the ids of prompts that went to another generator, each as often as that happened; and why
    prompts will never have a response, by id."""

    rollouts: Sequence[Rollout] = ()
    requeued: Sequence[str] = ()
    refused: dict[str, str] = field(default_factory=dict)


class Arrivals:
    """Responses in the order in which they come, prompt by prompt. A round of requests that is watched wakes who waits
    when it ends."""

    def __init__(self, stop: threading.Event) -> None:
        """`stop` ends every wait."""
        self._stop = stop
        self._queue: queue.SimpleQueue[list[Rollout] | None] = queue.SimpleQueue()
        self._ready: list[list[Rollout]] = []
        self._over = True
        self.count = 0
        """Prompts whose responses have come."""

    def put(self, rollouts: list[Rollout]) -> None:
        """One prompt's responses; on any thread."""
        self._queue.put(rollouts)

    def watch(self, round_: "Future[Any]") -> None:
        """A round begins, whose responses are `put` here. It ends by itself: its requests have deadlines."""
        self._over = False
        round_.add_done_callback(lambda _: self._queue.put(None))

    def wait(self, prompts: int | None) -> bool:
        """Whether so many prompts' responses are at hand, waiting until the round is over; None waits for its end.

        Raises Stopped where the run is to stop before.
        """
        while not self._over and (prompts is None or len(self._ready) < prompts):
            if self._stop.is_set():
                raise Stopped("stopped while the generators were at work")
            try:
                came = self._queue.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if came is None:
                self._over = True
            else:
                self._ready.append(came)
                self.count += 1
        return prompts is not None and len(self._ready) >= prompts

    def take(self, prompts: int | None) -> list[Rollout]:
        """The responses to the first prompts that came, or to all."""
        taken, rest = self._ready[:prompts], [] if prompts is None else self._ready[prompts:]
        self._ready = rest
        return [rollout for rollouts in taken for rollout in rollouts]
