"""Formats exit codes, log excerpts and ledger counts for people."""

import re
import signal
from collections.abc import Iterable

from rlhf_api.contract.report import LedgerStatus

_VLLM = r"(?:\([^)]*\) +)?(?:[A-Z]+ [\d: -]+ \[[^\]]*\] )?"
"""Prefix of vLLM's log lines: `(EngineCore pid=7) ERROR 11-21 11:24:37 [core.py:1512] `."""
_EXCEPTION = re.compile(
    rf"^{_VLLM}(?P<line>(?:\[[^\]]*\]:? *)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*)"
)
_FOLLOWING = re.compile(
    "ChildFailedError|SignalException|EngineDeadError|RankLost|CancelledError"
    "|Engine core initialization failed|Executor failed"
    "|gloo/transport/(?!.*Too many open files)|DistNetworkError: (?:Broken pipe|Connection reset|failed to recv)"
)
"""Errors that only follow from another process's failure."""
_NATIVE = re.compile(
    r"(?P<line>Watchdog caught collective operation timeout: .*|Fatal Python error: .*|(?<=what\(\): ).*)"
)
"""Last log lines of libraries that end their process without a Python exception."""
_LAST_WORDS = re.compile(r"^\S+ \S+ ERROR rlhf: (?P<line>.*)", re.MULTILINE)
"""Log line of the error that ends a role, which is its termination message too, unless that could not be written."""
BEYOND_LIMIT = (
    "storage usage exceeds the total limit|EmptyDir .* exceeds the limit|its local ephemeral storage limit"
)
"""Kubelets' words for a pod that they evict for what it wrote to the disk."""
_TYPES = {
    "GpuError": r"uncorrectable ECC|no CUDA-capable device|No CUDA GPUs are available|GPU is lost|fallen off the bus"
    r"|CUDA-capable device\(s\) is/are busy or unavailable"
    "|CUDA_ERROR_(?:ECC_UNCORRECTABLE|NO_DEVICE|DEVICE_UNAVAILABLE)",
    "CudaOutOfMemory": "CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY",
    "DiskFull": f"No space left on device|os error 28|Disk quota exceeded|{BEYOND_LIMIT}",
    "HostOutOfMemory": r"\bMemoryError\b|can't allocate memory|Cannot allocate memory|std::bad_alloc"
    r"|(?<!maybe )for lack of memory|\(OOMKilled\)",
    "NcclTimeout": "Watchdog caught collective operation timeout|NCCL.*(?:timeout|timed out)",
    "NcclError": "NCCL [Ee]rror|nccl(?:System|Internal|Remote|UnhandledCuda)Error|NCCL communicator was aborted",
    "Hung": "gave no sign of life",
    "NoProgress": "made no progress for",
    "EngineDead": r"vLLM's process .* (?:was ended|exited)|vLLM's engine is dead|^exited with code 70\b",
}
"""Failure types, root causes first, by the patterns of their messages."""
_PROGRAM = re.compile(
    r"\b(?:Assertion|Attribute|Import|Index|Key|ModuleNotFound|Name|NotImplemented|Overflow|Recursion|Runtime|Type"
    r"|UnboundLocal|Value|ZeroDivision)Error\b"
)
"""Python's errors of a program and its input, which come again when the same is computed."""
_MACHINE = re.compile(r"CUDA|cuda|CUBLAS|cuBLAS|cuDNN|NCCL|gloo|[Cc]onnect|[Tt]imed? ?out")
"""Words of errors that another start may not meet: a device's, a peer's or a network's."""
_ROOTS = re.compile("|".join(list(_TYPES.values())[:4]))
"""Root causes, of which any other logged error may be a consequence."""


def exit_words(code: int) -> str:
    """An exit code as words: `exited with code 3`, `was ended by SIGKILL`."""
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exited with code {code}"


def failure_type(words: str) -> str:
    """Failure type by its message, such as `DiskFull`; empty if none matches."""
    return next((name for name, pattern in _TYPES.items() if re.search(pattern, words)), "")


def is_repeatable(reason: str) -> bool:
    """True for an error of the program or its input, which the same computation meets again; not for one of memory, a
    disk, a device, a network, or another process."""
    machine = failure_type(reason) or is_consequence(reason) or _MACHINE.search(reason)
    return not machine and _PROGRAM.search(reason) is not None


def most_informative_line(text: str) -> str:
    """The line of a log that best explains its process's end: the first error about a GPU, memory or a full disk, else
    the last one that does not follow from another process's end, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = _exceptions(lines)
    roots = [line for line in errors if _ROOTS.search(line)]
    return (roots[:1] or errors or lines or [""])[-1][:300]


def is_consequence(reason: str) -> bool:
    """True for an error that only follows from another process's failure."""
    return _FOLLOWING.search(reason) is not None


def cause(message: str, log: str, *, silent: bool) -> str:
    """Cause of a process's end: its termination message's last line, or the best line of its log if there is none or it
    only follows from another process's end. A `silent` end, by SIGKILL or with exit code 0, left neither."""
    message, lines = message.strip().rpartition("\n")[2] or _last_error(log), log.splitlines()
    if message and not is_consequence(message):
        return message
    if silent:
        return ""
    return message if message and not _exceptions(lines) else most_informative_line(log)


def _last_error(log: str) -> str:
    """The first error that a role's processes logged as their end, if any."""
    match = _LAST_WORDS.search(log)
    return match["line"] if match else ""


def _exceptions(lines: Iterable[str]) -> list[str]:
    matches = (_EXCEPTION.match(line.strip()) or _NATIVE.search(line) for line in lines)
    exceptions = [match["line"].strip() for match in matches if match]
    return [line for line in exceptions if not is_consequence(line)]


def ledger_words(ledger: LedgerStatus) -> str:
    """Counts of the data epoch's prompts, as text."""
    counts = ("issued", "returned", "trained", "requeued")
    text = ", ".join(f"{getattr(ledger, name)} {name}" for name in counts)
    return f"epoch {ledger.epoch}: {text}; in all {ledger.dropped} dropped, {ledger.lost} lost"


def missing_words(ledger: LedgerStatus | None) -> str:
    """Text about lost or dropped prompts; empty if all were trained on."""
    if ledger is None or not (ledger.dropped or ledger.lost):
        return ""
    return f"{ledger.dropped} prompts were dropped and {ledger.lost} lost: they were not trained on"
