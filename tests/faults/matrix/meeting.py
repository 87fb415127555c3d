"""The other side of `hook`: has a process wait at a named point, and lets it go on."""

from collections.abc import Callable
from pathlib import Path

from tests.faults.matrix.hook import ARMED, GO, REACHED

FOLDER = "meeting"
"""Name of the folder, in a workspace that pods share."""
READY_SECONDS = 480.0
"""Deadline of every role to be ready, and of a point to be reached: that an engine hangs may be noticed after 300 s."""
Wait = Callable[[Callable[[], bool], float], object]
"""Waits until something has happened, so many seconds at most, and raises after that."""


class Meeting:
    """Rendezvous in `folder`, one at a time."""

    def __init__(self, folder: Path, wait: Wait) -> None:
        self._folder, self._wait, self._number = folder, wait, 0

    def reach(self, point: str) -> None:
        """Returns when the process of `<process> <point>` waits there."""
        (self._folder / REACHED).unlink(missing_ok=True)
        self._number += 1
        fresh = self._folder / f"{ARMED}.new"
        fresh.write_text(f"{self._number} {point}")
        fresh.rename(self._folder / ARMED)
        self._wait((self._folder / REACHED).exists, READY_SECONDS)

    def release(self) -> None:
        (self._folder / f"{GO}{self._number}").touch()
