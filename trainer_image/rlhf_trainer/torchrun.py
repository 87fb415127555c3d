"""torchrun for this node's ranks: forwards SIGTERM to them, and returns the exit code of the rank that failed first.

A job's only rank is started without torchrun, whose import of torch takes two seconds and 200 MB.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import psutil

from .process.addresses import interface

HANDLED = "SIGINT,SIGHUP,SIGQUIT"
"""Signals that torchrun handles, without SIGTERM, after which it would give the ranks only 30 s: a pod's grace period
may be longer.
"""


def main(arguments: list[str]) -> int:
    """Runs torchrun's command line; the exit code tells hosts whether a restart would help.

    On SIGTERM the ranks checkpoint and end, with those of the other nodes; see `rlhf_trainer.roles.trainer`.
    """
    # Before the slow imports: the first process of a container has no default signal handlers.
    _pass_on_sigterm()
    if (name := interface(os.environ.get("RLHF_HOST", ""))) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    if (command := _alone(arguments)) is not None:
        return _exit_code(subprocess.Popen(command).wait())
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from .transport.tcp_store import use_everywhere

    use_everywhere()
    try:
        run.main(["--signals-to-handle", HANDLED, *_safe_path(arguments)])
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return _exit_code(failure.exitcode)
    return 0


def _alone(arguments: Sequence[str]) -> list[str] | None:
    """The command of a job's only rank, with its variables set in this process; None if there are more."""
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("--nnodes", "--nproc-per-node", "--master-addr", "--master-port", "-m"):
        parser.add_argument(name, required=True)
    options, _ = parser.parse_known_args(arguments)
    if (options.nnodes, options.nproc_per_node) != ("1", "1"):
        return None
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": options.master_addr, "MASTER_PORT": options.master_port}
    return [sys.executable, "-P", "-m", options.m]


def _safe_path(arguments: Sequence[str]) -> list[str]:
    """The arguments with `-P` for the ranks' Python, as for this process's; torchrun would start them without."""
    module = arguments.index("-m")
    return [*arguments[:module], "--no-python", sys.executable, "-P", "-u", *arguments[module:]]


def _exit_code(code: int) -> int:
    """As a shell gives it: 128 plus the signal that ended the rank."""
    return code if code >= 0 else 128 - code


def _pass_on_sigterm() -> None:
    """Forwards SIGTERM to this process's children; without children, SIGTERM ends this process."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda *_: None)

    # On a thread: a main thread that waits in C++ for the other nodes runs no Python signal handler.
    def listen() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGTERM:
                ranks = psutil.Process().children()
                for rank in ranks:
                    with suppress(psutil.NoSuchProcess):
                        rank.terminate()
                if not ranks:
                    os._exit(128 + signal.SIGTERM)

    threading.Thread(target=listen, name="sigterm", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
