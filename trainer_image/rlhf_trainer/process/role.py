"""Start and end of every role's process: environment, logging, one clear termination message on failure."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from rlhf_api.contract.run import EXIT_INVALID, ProcessEnv
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.imports import described
from rlhf_api.host.printing import CleanFormatter
from rlhf_store.errors import UnusableStore

from . import termination

log = logging.getLogger("rlhf")


class RoleEnd(RuntimeError):
    """Ends the role with a message and an exit code that tells the host how to react."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_role(run: Callable[[ProcessEnv], int | None]) -> None:
    """Runs a role and exits with its code: EXIT_INVALID if the job itself is at fault, 1 for other errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(CleanFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    gc.freeze()  # what was imported stays
    gc.enable()
    try:
        env = ProcessEnv.read()
    except KeyError as error:
        sys.exit(f"{error} is not set: roles are started by `rlhf run` or by the operator")
    try:
        code = run(env) or 0
    except InvalidJob as error:
        end(env, str(error))
        code = EXIT_INVALID
    except UnusableStore as error:
        default = (
            "" if env.config.spec.checkpoint.store else ", which is not given and so in the work directory"
        )
        end(env, f"spec.checkpoint.store{default}: {error}")
        code = EXIT_INVALID
    except RoleEnd as error:
        end(env, str(error))
        code = error.code
    except Exception as error:
        end(env, described(error), error)
        log.exception("the role ends")
        code = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: that waits for threads, and one with a request under way might never end.
    os._exit(code)


def end(env: ProcessEnv, message: str, error: BaseException | None = None) -> None:
    """Writes the termination message for the host, with the `error`'s traceback; the first message is kept."""
    log.error("%s", message)
    termination.write(message, env.termination_log, error=error)


def on_sigterm(act: Callable[[], None]) -> None:
    """Calls `act` on SIGTERM, which hosts send to suspend, drain and stop."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        act()

    signal.signal(signal.SIGTERM, handle)
