"""Exit codes and error printing of the command line."""

import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.printing import write_line
from rlhf_api.host.variables import ENVIRONMENT
from rlhf_store.errors import UnusableStore

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit codes."""


class Failure(Exception):
    """A command failed; the text is the complete message for the user."""


class Misuse(Failure):
    """Contradictory arguments."""


def print_line(text: str, out: TextIO) -> None:
    """Prints a line. After a closed pipe or terminal, prints nothing more."""
    try:
        write_line(text, out)
    except OSError:
        _silence(out)


def ended(act: Callable[[], int]) -> int:
    """The exit code of a command: the result of `act`, or that of its exception, which is printed as a line."""
    _open_the_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # printing must not end a run
    try:
        return act()
    except InvalidJob as error:
        problems, code = [str(problem) for problem in error.problems], USAGE
    except UnusableStore as error:
        problems, code = [str(error)], USAGE
    except Failure as error:
        problems, code = [str(error)], USAGE if isinstance(error, Misuse) else FAILED
    except BrokenPipeError:
        _silence(sys.stdout)  # for the flush at exit
        return FAILED
    except OSError as error:
        problems, code = [str(error)], FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    for problem in problems:
        print_line(f"error: {ENVIRONMENT.conceal(problem)}", sys.stderr)
    return code


def _open_the_closed() -> None:
    """Opens /dev/null in place of those standard streams that the caller has closed (`>&-`), which are None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _silence(out: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
