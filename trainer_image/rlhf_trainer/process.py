"""Start and end of every role's process: its env, its log, one clear message when it ends badly."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from rlhf_api.problems import InvalidJob
from rlhf_api.run import EXIT_INVALID, ProcessEnv

from . import termination

log = logging.getLogger("rlhf")


class RoleEnd(RuntimeError):
    """Ends the role with a message and an exit code that tell its host what to do."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_role(run: Callable[[ProcessEnv], int | None]) -> None:
    """Runs a role and exits with its code: EXIT_INVALID where the job itself is at fault, 1 for other errors."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        env = ProcessEnv.read()
    except KeyError as error:
        sys.exit(f"{error} is not set: roles are started by `rlhf run` or by the operator")
    try:
        code = run(env) or 0
    except InvalidJob as error:
        end(env, str(error))
        code = EXIT_INVALID
    except RoleEnd as error:
        end(env, str(error))
        code = error.code
    except Exception as error:
        end(env, f"{type(error).__name__}: {error}")
        log.exception("the role ends")
        code = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: that would wait for threads, and one that still asks another role would never end.
    os._exit(code)


def end(env: ProcessEnv, message: str) -> None:
    """Leaves the termination message where the host looks for it; the first one stands."""
    log.error("%s", message)
    termination.write(message, env.termination_log)


def on_sigterm(act: Callable[[], None]) -> None:
    """Calls `act` on SIGTERM; hosts send it to suspend, to drain and to stop."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        act()

    signal.signal(signal.SIGTERM, handle)
