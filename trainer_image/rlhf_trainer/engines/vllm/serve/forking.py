"""The engine's process, forked from the one that starts it, which has imported all of vLLM, has computed nothing by
then, has no threads that compute and has not initialised CUDA. vLLM would spawn it, which imports everything a second
time: 18 s.
"""

import importlib
import os
import socket
import sys
from contextlib import suppress
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


def fork_engine() -> None:
    """Makes vLLM fork its engine process, where that process can be forked: its platform for CPUs overwrites
    VLLM_WORKER_MULTIPROC_METHOD. Workers that an engine has beside it are spawned."""
    utils: Any = importlib.import_module("vllm.v1.engine.utils")
    platform: Any = importlib.import_module("vllm.utils.platform_utils")
    spawning = utils.get_mp_context

    def choose() -> Any:
        return spawning() if platform.cuda_is_initialized() or NUMA in sys.argv else Forking()

    utils.get_mp_context = choose
