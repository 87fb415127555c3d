"""Work queue of job names: namespaces take turns; one worker per job at a time, changed jobs before periodic ones."""

import asyncio
import contextlib
import heapq
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...kube.api import Key

# Jobs of a namespace are taken in the order of their coming, as if a new one had come a minute earlier and one that
# only wants to be looked at again five seconds later: new jobs go first, and no job waits for ever.
_NEW_SECONDS = -60.0
_ROUTINE_SECONDS = 5.0
_BACKOFF_SECONDS = 0.5
_BACKOFF_LIMIT = 60.0

_Entry = tuple[float, int, Key]


@dataclass(slots=True)
class _Job:
    new: bool
    due: float | None = None
    """Time from which the job may be taken; None if it is not queued."""
    changed: bool = False
    """The job changed; otherwise it is due for a periodic reconcile."""
    held: float = 0.0
    """The API server asked not to retry before this time."""
    failures: int = 0
    active: bool = False
    ready: bool = False
    entry: int = 0
    """Number of its only valid entry in a heap."""


class Queue:
    """Keys of jobs: workers `get` one, and then call `done` or `failed`, once."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random
    ) -> None:
        self._clock, self._jitter = clock, jitter
        self._jobs: dict[Key, _Job] = {}
        self._later: list[_Entry] = []
        self._ready: dict[str, list[_Entry]] = {}
        """Heap of each namespace that has jobs to take, the one whose turn it is first."""
        self._depth = 0
        self._entries = itertools.count(1)
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Keys that could be taken now."""
        self._ripen()
        return self._depth

    def add(self, key: Key, after: float | None = None) -> None:
        """Queues a changed job; with `after`, a periodic reconcile in that many seconds. The earliest wins."""
        job = self._jobs.setdefault(key, _Job(new=after is None))
        due, changed = max(self._clock() + (after or 0.0), job.held), after is None
        if job.due is None or due < job.due or (changed and not job.changed):
            job.due = due if job.due is None else min(due, job.due)
            job.changed = job.changed or changed
            self._schedule(key, job)

    async def get(self) -> Key:
        """The next key, which no other worker gets before `done` or `failed`."""
        while (key := self.take()) is None:
            self._changed.clear()
            wait = self._later[0][0] - self._clock() if self._later else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
        return key

    def take(self) -> Key | None:
        """The next key, if one can be taken now."""
        self._ripen()
        while self._ready:
            namespace, line = next(iter(self._ready.items()))
            entry = heapq.heappop(line)
            if not line:
                del self._ready[namespace]
            if self._valid(entry):
                if line:
                    self._ready[namespace] = self._ready.pop(namespace)
                self._depth -= 1
                key = entry[2]
                job = self._jobs[key]
                job.active, job.new, job.ready, job.due, job.changed = True, False, False, None, False
                return key
        return None

    def done(self, key: Key, again: float | None = None) -> None:
        """Reports a finished reconcile; `again`: seconds until the next one, unless the job changes before."""
        self._jobs[key].failures = 0
        self._release(key, again)

    def failed(self, key: Key, hold: float = 0.0) -> float:
        """Reports a failed reconcile: retried with exponential backoff, or sooner on a change, but not within `hold`
        seconds. Returns the seconds until the retry."""
        job = self._jobs[key]
        longest = min(_BACKOFF_SECONDS * 2.0 ** min(job.failures, 10), _BACKOFF_LIMIT)
        wait = max(longest * (0.5 + self._jitter() / 2), hold)
        job.failures += 1
        job.held = self._clock() + max(hold, _BACKOFF_SECONDS / 2)
        job.due = None if job.due is None else max(job.due, job.held)
        self._release(key, wait)
        return wait

    def _release(self, key: Key, again: float | None) -> None:
        job = self._jobs[key]
        if again is not None:
            self.add(key, again)
        job.active = False
        if job.due is None:
            del self._jobs[key]
        else:
            self._schedule(key, job)

    def _schedule(self, key: Key, job: _Job) -> None:
        if job.active or job.due is None:
            return
        job.entry = next(self._entries)
        if job.ready:
            self._line_up(key, job, job.due)
            return
        heapq.heappush(self._later, (job.due, job.entry, key))
        if len(self._later) > 2 * len(self._jobs) + 64:  # most are outdated
            self._later = [entry for entry in self._later if self._valid(entry)]
            heapq.heapify(self._later)
        self._changed.set()

    def _ripen(self) -> None:
        while self._later and self._later[0][0] <= self._clock():
            entry = heapq.heappop(self._later)
            if self._valid(entry):
                due, _, key = entry
                self._depth += 1
                self._jobs[key].ready = True
                self._line_up(key, self._jobs[key], due)

    def _line_up(self, key: Key, job: _Job, due: float) -> None:
        rank = due + (_NEW_SECONDS if job.new else 0.0 if job.changed else _ROUTINE_SECONDS)
        heapq.heappush(self._ready.setdefault(key[0], []), (rank, job.entry, key))

    def _valid(self, entry: _Entry) -> bool:
        _, number, key = entry
        return key in self._jobs and self._jobs[key].entry == number
