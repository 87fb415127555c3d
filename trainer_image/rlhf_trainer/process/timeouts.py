"""Blame for a timeout: the response's if others end in time, else that of what all responses share."""

import time

IN_A_ROW = 32
"""Timeouts without any call that ends in time, after which no more are put down to the responses."""


class Timeouts:
    """Record of a scorer's calls that ended in time.

    A timeout is the response's doing if another call ended in time while this one ran. Where none did, as with the last
    responses of a batch, it is so too, but only IN_A_ROW times in a row, and not before any call has ended in time: a
    scorer that hangs for every response is no reason for a score.
    """

    def __init__(self) -> None:
        self._ended, self._in_a_row = -1.0, IN_A_ROW

    def record_end(self) -> None:
        """A call has ended in time."""
        self._ended, self._in_a_row = time.monotonic(), 0

    def is_of_response(self, began: float) -> bool:
        """True if the timeout of a call that began at `began` (`time.monotonic`) is the response's doing."""
        if self._ended >= began:
            return True
        self._in_a_row += 1
        return self._in_a_row <= IN_A_ROW
