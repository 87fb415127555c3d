"""Exit codes, log excerpts and ledger counts in words for people."""

import re
import signal
from collections.abc import Iterable

from rlhf_api.status import LedgerStatus

_VLLM = r"(?:\([^)]*\) +)?(?:[A-Z]+ [\d: -]+ \[[^\]]*\] )?"
"""Prefix of vLLM's log lines: `(EngineCore pid=7) ERROR 11-21 11:24:37 [core.py:1512] `."""
_EXCEPTION = re.compile(
    rf"^{_VLLM}(?P<line>(?:\[[^\]]*\]:? *)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)"
)
_FOLLOWING = re.compile(
    "ChildFailedError|SignalException|EngineDeadError|RankLost|CancelledError"
    "|Engine core initialization failed|Executor failed"
)
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
    """The line of a log that says most about its end: the last exception that does not follow from another process's
    end, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (_exceptions(lines) or lines or [""])[-1][:300]


def cause(message: str, log: str, *, silent: bool) -> str:
    """Cause of a process's end: its termination message, or the telling line of its log where there is none or where it
    only follows from another process's end. A `silent` death, by SIGKILL, left nothing in either."""
    message, lines = message.strip(), log.splitlines()
    if message and not _FOLLOWING.search(message):
        return message
    if silent:
        return ""
    return message if message and not _exceptions(lines) else telling_line(log)


def _exceptions(lines: Iterable[str]) -> list[str]:
    found = [match["line"] for line in lines if (match := _EXCEPTION.match(line.strip()))]
    return [line for line in found if not _FOLLOWING.search(line)]


def ledger_words(ledger: LedgerStatus) -> str:
    """Every prompt is trained on once an epoch: how far that is."""
    counts = ("issued", "returned", "trained", "requeued")
    told = ", ".join(f"{getattr(ledger, name)} {name}" for name in counts)
    return f"epoch {ledger.epoch}: {told}; in all {ledger.dropped} dropped, {ledger.lost} lost"


def missing_words(ledger: LedgerStatus | None) -> str:
    """Prompts that were lost or dropped, in words; empty where all were trained on."""
    if ledger is None or not (ledger.dropped or ledger.lost):
        return ""
    return f"{ledger.dropped} prompts were dropped and {ledger.lost} lost: they were not trained on"
