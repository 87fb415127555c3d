"""Time of day of the API server, from the `Date` of its answers.

Deadlines of pods are the server's (`deletionTimestamp`), and those of jobs are kept by one operator after another: all
are read by this one clock, whatever the clock of the operator's own node says.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


class ServerClock:
    """The operator's clock plus an offset, which moves as far as an answer contradicts it and no farther."""

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self.local = local
        """Time of day of this process, seconds since the epoch."""
        self._offset = 0.0

    def observe_date_header(self, date: str, sent: float) -> None:
        """Takes the `Date` of an answer that has just come; `sent`: the local time before its request."""
        try:
            server_time = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        # It is cut to whole seconds, and was written between the request and now.
        earliest, latest = server_time - self.local(), server_time + 1.0 - sent
        self._offset = min(max(self._offset, earliest), latest)

    def time(self) -> float:
        """The server's time of day, seconds since the epoch."""
        return self.local() + self._offset

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.time(), UTC)
