"""`rlhf run` as a child process, for programs that do something else meanwhile: its lines as they come, a stop, its
end."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType

from rlhf_api.host import reaper

from .display.metrics import read_appended

POLL_SECONDS = 0.1
PROGRAM = "rlhf_operator.entry"
"""Module of the command line."""


class RunProcess:
    """One `rlhf run`, in a session of its own: a terminal's or a notebook's Ctrl-C reaches it only by `stop`. It is
    killed, with all that it has started, when the thread that made this ends, so make it in the main thread."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str] = MappingProxyType({})) -> None:
        """`environ`: further environment variables. Raises OSError if the machine cannot start a process."""
        # Not a pipe, which somebody would have to read all the time. Without a name, it needs no removal.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._end_of_read = 0
        command = [sys.executable, "-P", "-m", PROGRAM, "run", *arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(reaper.__file__), str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environ},
            start_new_session=True,
        )

    @property
    def code(self) -> int | None:
        """The exit code of `rlhf run`; None while it runs."""
        return self._process.poll()

    def new_lines(self) -> list[str]:
        """The output since the last call."""
        file = Path(
            f"/proc/self/fd/{self._output.fileno()}"
        )  # opened anew: the child writes where this one is
        self._end_of_read, whole = read_appended(file, self._end_of_read)
        return whole.decode(errors="replace").splitlines()

    def stop(self) -> None:
        """Requests a checkpoint and exit; the second call ends the run at once."""
        if self.code is None:
            self._process.send_signal(signal.SIGINT)


@contextmanager
def handle_signals(handle: Callable[[], None], *numbers: int) -> Iterator[list[int]]:
    """Has signals call `handle` in place of interrupting what is being done; yields those so far. One that is ignored
    stays so, and other threads than the main one get none."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        handle()

    is_main = threading.current_thread() is threading.main_thread()
    heeded = [each for each in numbers if is_main and signal.getsignal(each) is not signal.SIG_IGN]
    before = [signal.signal(each, receive) for each in heeded]
    try:
        yield received
    finally:
        for each, handler in zip(heeded, before, strict=True):
            signal.signal(each, handler)
