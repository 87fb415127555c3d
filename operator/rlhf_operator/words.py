"""How a process ended, in words for people."""

import re
import signal

_VLLM = r"(?:\([^)]*\) +)?(?:[A-Z]+ [\d: -]+ \[[^\]]*\] )?"
"""What vLLM puts before a line: `(EngineCore pid=7) ERROR 11-21 11:24:37 [core.py:1512] `."""
_EXCEPTION = re.compile(
    rf"^{_VLLM}(?P<line>(?:\[[^\]]*\]:? *)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)"
)
_FOLLOWING = re.compile(r"ChildFailedError|SignalException|EngineDeadError")
"""Errors that only follow from another process's."""


def exit_words(code: int) -> str:
    """An exit code as words: `exited with code 3`, `was ended by SIGKILL`."""
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exited with code {code}"


def telling_line(text: str) -> str:
    """The line of a log that says most about its end: the last exception, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [match["line"] for line in lines if (match := _EXCEPTION.match(line))]
    exceptions = [line for line in found if not _FOLLOWING.search(line)]
    return (exceptions or lines or [""])[-1][:300]
