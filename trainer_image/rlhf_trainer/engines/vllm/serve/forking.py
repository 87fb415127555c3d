"""Processes of vLLM that are forked from its server: the engine's, and before it one that looks at the model's class.
The server has imported all of vLLM, has computed nothing by then, has no threads that compute and has not initialised
CUDA. vLLM would start each anew, and import everything again: 17 s.
"""

import importlib
import os
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

NUMA = "--numa-bind"
"""Option of vLLM with which an engine's process has another executable, and so is spawned."""


class Engine(ForkProcess):
    """Calls vLLM's plugins, ours too, as an engine does that is spawned: in its own process, and behind its own log.
    And it does not keep the server's port open."""

    def run(self) -> None:
        _let_go_of_ports()
        plugins: Any = importlib.import_module("vllm.plugins")
        plugins.plugins_loaded = False
        super().run()


def _let_go_of_ports() -> None:
    """Replaces inherited sockets that are bound and have no peer by /dev/null: their objects in this process would
    close whatever got their numbers."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        with (
            suppress(OSError),
            socket.socket(fileno=os.dup(number)) as duplicate,
        ):  # OSError: no socket, or gone
            if (
                duplicate.family in (socket.AF_INET, socket.AF_INET6)
                and duplicate.getsockname()[1]
                and not _peer(duplicate)
            ):
                os.dup2(nothing, number)
    os.close(nothing)


def _peer(sock: socket.socket) -> bool:
    try:
        return bool(sock.getpeername())
    except OSError:
        return False


class Forking(ForkContext):
    Process = Engine


def fork_processes() -> None:
    """Makes vLLM fork these two processes, where its own can be forked: its platform for CPUs overwrites
    VLLM_WORKER_MULTIPROC_METHOD. Workers that an engine has beside it are spawned."""
    utils: Any = importlib.import_module("vllm.v1.engine.utils")
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    platform: Any = importlib.import_module("vllm.utils.platform_utils")
    spawned_context, run_anew = utils.get_mp_context, registry._run_in_subprocess

    def may_fork() -> bool:
        return not platform.cuda_is_initialized() and NUMA not in sys.argv

    utils.get_mp_context = lambda: Forking() if may_fork() else spawned_context()
    registry._run_in_subprocess = lambda fn: (run_forked if may_fork() else run_anew)(fn)


def run_forked(function: Callable[[], Any]) -> Any:
    """The result of a call in a process of its own. Raises RuntimeError with the error's traceback."""
    receiving, sending = ForkContext().Pipe(duplex=False)
    process = ForkContext().Process(target=_send_result, args=(function, sending))
    process.start()
    sending.close()
    try:
        error, result = receiving.recv()
    except EOFError:
        process.join()
        error = f"the process ended with code {process.exitcode}"
    process.join()
    if error:
        raise RuntimeError(error)
    return result


def _send_result(function: Callable[[], object], sending: Connection) -> None:
    try:
        sending.send(("", function()))
    except Exception:
        sending.send((traceback.format_exc(), None))
