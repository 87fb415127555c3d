"""Parses a container's log as the kubelet sends it; pure."""

import datetime
import re

_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_LONGEST = 1 << 20


class Reading:
    """One log, read through any number of connections; yields every line once."""

    def __init__(self) -> None:
        self._rest = b""
        self._newest: str | None = None
        self._at_newest = 0
        """Number of lines with the newest time; a log may have several."""
        self._known = 0
        """Number of these lines that the present connection sends again."""
        self._skipping = False

    def connect(self) -> str | None:
        """Starts a new connection; the time to request the log from."""
        self._rest, self._known, self._skipping = b"", self._at_newest, self._newest is not None
        return self._newest

    def take(self, piece: bytes) -> list[str]:
        """Texts of the new lines that end in this chunk."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST:
            whole, self._rest = [*whole, self._rest], b""
        return [text for raw in whole for text in self._line(raw)]

    def end(self) -> list[str]:
        """The last line, if it has no newline."""
        rest, self._rest = self._rest, b""
        return self._line(rest) if rest else []

    def _line(self, raw: bytes) -> list[str]:
        whole = raw.decode(errors="replace")
        stamp, _, text = whole.partition(" ")
        if not _STAMP.fullmatch(stamp):
            return [_apply_carriage_returns(whole)]
        if self._skipping and self._newest is not None:
            if _time(stamp) < _time(self._newest):
                return []
            if _time(stamp) == _time(self._newest) and self._known:
                self._known -= 1
                return []
            self._skipping = False  # kept: clocks may go back
        self._at_newest = self._at_newest + 1 if stamp == self._newest else 1
        self._newest = stamp
        return [_apply_carriage_returns(text)]


def _time(stamp: str) -> tuple[float, int]:
    """Seconds, and nanoseconds separately: more digits than a float has."""
    match = _STAMP.fullmatch(stamp)
    assert match is not None
    second = datetime.datetime.fromisoformat(match[1] + match[3]).timestamp()
    return (second, int((match[2] or "0").ljust(9, "0")))


def _apply_carriage_returns(text: str) -> str:
    """Applies carriage returns of progress bars: the line as a terminal finally shows it."""
    return text.rstrip("\r").rpartition("\r")[2]
