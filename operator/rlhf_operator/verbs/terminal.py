"""Output: coloured and redrawn on a terminal, plain lines elsewhere."""

import datetime
from types import TracebackType
from typing import Self, TextIO

from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from rlhf_api.host.printing import write_line

from ..console.terminal import CleanConsole


def put(text: str | Text, out: TextIO) -> None:
    """Prints at once. Raises BrokenPipeError if the reader is gone."""
    if isinstance(text, Text) and out.isatty():
        CleanConsole(file=out).print(text, soft_wrap=True)
        out.flush()
    else:
        write_line(str(text), out)  # a Text without styles


class LiveView:
    """A text that changes during a wait: redrawn in place, or printed with its time at each change."""

    def __init__(self, out: TextIO, *, spinner: bool = False) -> None:
        self._out, self._last = out, ""
        self._spinner = Spinner("dots") if spinner else None
        console = CleanConsole(file=out)
        self._live = Live(console=console, auto_refresh=spinner, transient=spinner) if out.isatty() else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, drawn: Text, line: str) -> None:
        """Shows `drawn` if it can be redrawn, else `line`."""
        if self._live is None:
            if line != self._last:
                self.print_line(line)
            self._last = line
        elif self._spinner is not None:
            self._spinner.update(text=drawn)
            self._live.update(self._spinner)
        else:
            self._live.update(drawn, refresh=True)

    def print_line(self, line: str) -> None:
        """Prints a permanent line."""
        stamped = f"{datetime.datetime.now():%H:%M:%S} {line}"
        if self._live is not None:
            self._live.console.print(Text(stamped))
        else:
            put(stamped, self._out)
