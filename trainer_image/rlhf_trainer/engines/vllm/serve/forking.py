"""The engine's process, forked on a CPU from the one that starts it, which has imported all of vLLM, has computed
nothing by then and has no threads that compute. vLLM would spawn it, which imports everything a second time.
"""

import importlib
import os
import socket
from contextlib import suppress
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any


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
    """Makes vLLM fork its engine process: its platform for CPUs overwrites VLLM_WORKER_MULTIPROC_METHOD. Workers that
    an engine has beside it are spawned."""
    utils: Any = importlib.import_module("vllm.v1.engine.utils")
    utils.get_mp_context = Forking
