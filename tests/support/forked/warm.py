"""`rlhf`, its roles and vLLM's servers, forked from a process that has imported them all: each would spend four seconds
of a core and more on that.

What such a process starts is forked from it in turn where it is one of MODULES, and executed otherwise. Each is what it
would be else: a child of whoever started it, with the command, environment, folder, files, signals and session that it
was given. Not so variables that a library reads as it is imported (HF_HOME): a test that sets one, or is of imports,
starts a program as usual.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import setproctitle
from tests.support.forked.becoming import MODULES, Start, become, library
from tests.support.forked.forks import WITH_AN_ENGINE

from rlhf_trainer.engines.vllm.serve import server

LATER = ("torch.distributed.run", WITH_AN_ENGINE, *server.IMPORTED, server.SERVER)
"""Modules that those import once they run."""
READY_S = 300
_ROOM = 1 << 15
"""Bytes that a process has in its memory for its command, and for its environment, as others read them."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)
_execve = os.execve
_signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_nurseries: list[socket.socket] = []
_lock = threading.Lock()


class Popen(subprocess.Popen):
    """In a process that is warm and computes nothing: one of the MODULES is forked from it."""

    def _execute_child(self, *arguments: Any) -> None:
        given = _signature.bind(self, *arguments).arguments
        one = isinstance(given["args"], str | bytes | os.PathLike)
        command = [*map(str, [given["args"]] if one else given["args"])]
        environ = dict(os.environ if given["env"] is None else given["env"])
        cwd, session = str(given["cwd"] or Path.cwd()), given["start_new_session"]
        start = Start(command, environ, cwd, session, given["preexec_fn"])
        if not start.is_warm:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        pipes = [
            given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        ]
        files = [number if number != -1 else i for i, number in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = self._start(start, files)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _start(self, start: Start, files: Sequence[int]) -> int:
        return os.fork() or become(start, files, _fork_nursery)


class FromNursery(Popen):
    """In one with threads, which a fork would lack, or not warm: forked from another process, it becomes this one's."""

    def _start(self, start: Start, files: Sequence[int]) -> int:
        fields = {name: getattr(start, name) for name in ("command", "environ", "cwd", "session")}
        request, was = json.dumps(fields).encode(), ctypes.c_int()
        with _lock:
            nursery = _nurseries[0] if _nurseries else _start_nursery()
            _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
            # Orphans are this process's, for as long as this takes.
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(nursery, [len(request).to_bytes(4, "big")], list(files))
                nursery.sendall(request)
                reply = _receive(nursery, 4)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)
        if not reply:
            raise OSError("the process from which this one's are forked has ended")
        return int.from_bytes(reply, "big")


def _start_nursery() -> socket.socket:
    """A connection to the process from which a test's are forked; it ends when that is closed."""
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH"))))
    room = "x" * _ROOM
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), room],
            env=os.environ | {"RLHF_TEST_ROOM": room, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
        )
    ours.settimeout(READY_S)
    _nurseries.append(ours)
    return ours


def _fork_nursery() -> None:
    """The same for this process, which has no threads yet."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        _serve(theirs)
    theirs.close()
    _nurseries[:] = [ours]
    subprocess.Popen = FromNursery  # type: ignore[misc]


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := connection.recv(length - len(data))):
        data += more
    return data


def _serve(connection: socket.socket) -> NoReturn:
    """Forks what is asked for, through a process that ends at once: what it has forked is then the asking one's."""
    while True:
        head, files, *_ = socket.recv_fds(connection, 4, 3)
        if not head:
            os._exit(0)
        start = Start(**json.loads(_receive(connection, int.from_bytes(head, "big"))))
        reading, writing = os.pipe()
        if not (between := os.fork()):
            own = os.getpid()
            if pid := os.fork():
                os.write(writing, pid.to_bytes(4, "big"))
                os._exit(0)
            while os.getppid() == own:
                time.sleep(0.001)
            become(start, files, _fork_nursery)
        os.waitpid(between, 0)
        connection.sendall(os.read(reading, 4))
        for number in (*files, reading, writing):
            os.close(number)


def execute(path: str, command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """In place of `os.execve`."""
    start = Start(command, dict(environ), str(Path.cwd()), session=False)
    if not start.is_warm:
        _execve(path, command, environ)
    become(start, (0, 1, 2), _fork_nursery)


def _warm_up() -> None:
    gc.disable()
    library()
    subprocess.Popen, os.execve = Popen, execute  # type: ignore[misc, assignment]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as from a terminal
    for module in (*MODULES, *LATER):
        importlib.import_module(module)
    setproctitle.getproctitle()  # it takes note of where the words of a command are, as they are still Python's own
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    _warm_up()
    _serve(socket.socket(fileno=int(sys.argv[1])))
