"""Ends of commands: their user's mistakes as lines, and quietly where a reader such as `head` has enough."""

import os
import sys
from collections.abc import Callable

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.printing import write_line


def report_errors(command: Callable[[], int]) -> int:
    """The exit code of `command`: 2 for what it raises about the job or what it reads, and 1 where nobody reads its
    output to the end."""
    try:
        return command()
    except InvalidJob as error:
        for problem in error.problems:
            write_line(f"error: {problem}", sys.stderr)
        return 2
    except RuntimeError as error:  # of a store, a checkpoint, or an environment's process
        write_line(f"error: {error}", sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
