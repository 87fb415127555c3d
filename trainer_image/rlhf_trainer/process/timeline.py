"""Records what this rank does in a step, and for how long the processes that it asks have work, in bounded memory.

A span costs two readings of the clock. Ranks begin a step as they leave a collective, and count from there on: their
clocks need not agree.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rlhf_api.contract.run import Member
from rlhf_api.contract.timeline import Span
from rlhf_api.roles import Role

MOST_SPANS = 100
"""Of one process and kind in a step; if there are more, those with the shortest pauses between them become one."""
SHORTEST = 1e-4
"""Seconds; a shorter span is left out."""
_FIRST_PAUSE = 1e-3
_Place = tuple[Role, str, str]
"""Role, process and kind of work; no process for this rank."""
_Times = tuple[float, float]


class Recorder:
    """Spans since the begin of a step. Its methods may be called on any thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self._lock = clock, threading.Lock()
        self._began, self._time = clock(), time.time()
        self._spans: dict[_Place, list[_Times]] = {}
        self._requests: dict[_Place, tuple[int, float]] = {}
        """Number of requests that a process has now, and since when it has had any."""

    def begin_step(self) -> None:
        """Forgets all spans; what processes still work at counts from now on."""
        with self._lock:
            self._began, self._time, self._spans = self.clock(), time.time(), {}
            self._requests = {place: (count, self._began) for place, (count, _) in self._requests.items()}

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Records what this rank does inside the context."""
        began = self.clock()
        try:
            yield
        finally:
            self.record(what, began)

    def record(self, what: str, began: float) -> None:
        """Records what this rank has done from `began`, a reading of `clock`, until now."""
        with self._lock:
            self._add((Role.TRAINER, "", what), began, self.clock())

    def begin_request(self, member: Member) -> Callable[[object], None]:
        """Records that a process has one more request, until what this returns is called."""
        place = member.role, member.name, member.role.row.work
        with self._lock:
            count, since = self._requests.get(place, (0, 0.0))
            self._requests[place] = count + 1, since if count else self.clock()

        def end(_request: object) -> None:
            with self._lock:
                count, since = self._requests.pop(place)
                if count > 1:
                    self._requests[place] = count - 1, since
                else:
                    self._add(place, since, self.clock())

        return end

    def take_step(self, rank: int) -> tuple[float, list[Span]]:
        """Begin of the step, in seconds since 1970, and its spans until now, of this rank and of those it asked."""
        with self._lock:
            now = self.clock()
            for place, (_, since) in self._requests.items():
                self._add(place, since, now)
            began, spans = self._began, self._spans
            self._spans = {}
        return self._time, [
            Span(role.value, who or rank, what, round(begin - began, 4), round(end - began, 4))
            for (role, who, what), times in spans.items()
            for begin, end in times
        ]

    def _add(self, place: _Place, begin: float, end: float) -> None:
        if end - begin < SHORTEST:
            return
        times = self._spans.setdefault(place, [])
        times.append((begin, end))
        if len(times) > MOST_SPANS:
            self._spans[place] = join_times(times, MOST_SPANS // 2)


def join_times(times: Sequence[_Times], most: int) -> list[_Times]:
    """At most so many spans, in order, that cover the given ones and the shortest pauses between them."""
    pause, joined = _FIRST_PAUSE, list(times)
    while len(joined) > most:
        given, joined = joined, joined[:1]
        for begin, end in given[1:]:
            if begin - joined[-1][1] < pause:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((begin, end))
        pause *= 2
    return joined


RECORDER = Recorder()
"""Of this process."""
