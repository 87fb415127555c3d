"""The process of a worker that runs a user's code: its pipes, and its end with its parent. Imports no torch."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from rlhf_api.host.reaper import end_with_parent

FIRST_TO_KILL = "1000"
"""`oom_score_adj` of a worker: out of memory, the kernel kills a worker and not its parent."""


def take_pipes(parent: int) -> tuple[TextIO, TextIO] | None:
    """Standard input and output, for the protocol alone: what the user's code prints goes to the log, and its standard
    input is empty. None where `parent`, the process that started this one, has ended meanwhile; 0: one that ends this
    process itself."""
    calls, replies = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_KILL)
    end_with_parent()
    return (calls, replies) if parent in (0, os.getppid()) else None
