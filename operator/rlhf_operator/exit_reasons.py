"""Exit codes, log excerpts and ledger counts in words for people."""

import re
import signal

from rlhf_api.status import LedgerStatus

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


def ledger_words(ledger: LedgerStatus) -> str:
    """Every prompt is trained on once an epoch: how far that is."""
    counts = ("issued", "returned", "trained", "requeued")
    told = ", ".join(f"{getattr(ledger, name)} {name}" for name in counts)
    return f"epoch {ledger.epoch}: {told}; in all {ledger.dropped} dropped, {ledger.lost} lost"


def missing_words(ledger: LedgerStatus | None) -> str:
    """What was not trained on that should have been; empty where all was."""
    if ledger is None or not (ledger.dropped or ledger.lost):
        return ""
    return f"{ledger.dropped} prompts were dropped and {ledger.lost} lost: they were not trained on"
