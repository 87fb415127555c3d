"""Exit codes and error printing of the command line."""

import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from rlhf_api.problems import InvalidJob

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""


class Failure(Exception):
    """A command could not do what it was asked to; the text says all that the user needs."""


class Misuse(Failure):
    """The arguments do not go together."""


def say(text: str, out: TextIO) -> None:
    """Print a line. Where nobody reads any more (a closed pipe or terminal), be silent from then on."""
    try:
        print(text, file=out, flush=True)
    except OSError:
        _silence(out)


def ended(act: Callable[[], int]) -> int:
    """The exit code of a command: what `act` returns, or that of what it raises, which is told in a line each."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a log's line must not end a run
    try:
        return act()
    except InvalidJob as error:
        problems, code = [str(problem) for problem in error.problems], USAGE
    except Failure as error:
        problems, code = [str(error)], USAGE if isinstance(error, Misuse) else FAILED
    except BrokenPipeError:
        _silence(sys.stdout)  # for the flush at the end
        return FAILED
    except OSError as error:
        problems, code = [str(error)], FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    for problem in problems:
        say(f"error: {problem}", sys.stderr)
    return code


def _silence(out: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
