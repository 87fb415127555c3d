"""Tries a tokenizer's file, whose patterns and replacements are a stranger's program, in a process of limited time and
memory: `python3 -m rlhf_trainer.data.tokenizer_trial FILE`.

Its patterns backtrack, and one of ten characters may take minutes for each that it reads; the library's own limit is of
each attempt alone. A replacement of replacements makes a letter terabytes.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer

from rlhf_api.host.foreign_files import LARGEST_JSON, read_regular
from rlhf_api.host.printing import write_line
from rlhf_api.host.redaction import without_secrets

from ..process.limits import limit_memory

LOAD_SECONDS, TEXT_SECONDS = 20.0, 2.0
"""Computing time of loading the file, for which the largest take 2 s, and of the text, for which none takes 0.1 s."""
MEMORY = 4 << 30
TEXT = "".join(f"{run * 1000}.\n" for run in ("a", "A", " ", "0", "é", "漢", "-", "ab ", "a1", "\n"))
_LONGEST = 500
"""Characters of what is said of a problem."""


def tokenizer_problem(file: Path) -> str:
    """The problem of a file that takes too long or too much for a short text, or ends the library; '' without one.
    What it raises is left to whoever loads it."""
    command = [sys.executable, "-P", "-m", __name__, str(file)]
    nothing = subprocess.DEVNULL
    variables = without_secrets(os.environ)
    done = subprocess.run(
        command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing, env=variables, check=False
    )
    if done.returncode == -signal.SIGPROF:
        times = f"{LOAD_SECONDS:g} s to load, or {TEXT_SECONDS:g} s for {len(TEXT)} characters"
        return f"its {file.name} computes longer than {times}"
    if done.returncode:
        return f"its {file.name} takes more than {MEMORY >> 20} MiB of memory for {len(TEXT)} characters"
    return done.stdout.decode(errors="replace")[:_LONGEST]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    limit_memory(MEMORY)
    signal.setitimer(signal.ITIMER_PROF, LOAD_SECONDS)
    file = Path(sys.argv[1])
    try:
        tokenizer = Tokenizer.from_buffer(read_regular(file, LARGEST_JSON))
        signal.setitimer(signal.ITIMER_PROF, TEXT_SECONDS)
        tokenizer.encode(TEXT)
    except MemoryError:
        sys.exit(1)
    except Exception:  # said in the words of whoever loads it
        return
    except BaseException as error:  # a panic of the library
        write_line(f"its {file.name} cannot be used: {error}"[:_LONGEST], sys.stdout)


if __name__ == "__main__":
    main()
