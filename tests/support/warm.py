"""`rlhf`, its roles and vLLM's servers, forked from a process that has imported them all: each would spend four seconds
of a core and more on that.

What such a process starts is forked from it in turn where it is one of MODULES, and executed otherwise. Each is what it
would be else: a child of whoever started it, with the command, environment, folder, files, signals and session that it
was given. Not so variables that a library reads as it is imported (HF_HOME): a test that sets one, or is of imports,
starts a program as usual.
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any, NoReturn

import setproctitle

from rlhf_api.host import reaper
from rlhf_trainer.engines.vllm.serve import server

ROLES = [f"rlhf_trainer.roles.{name}" for name in ("trainer", "reward", "reference", "generator")]
VLLM = [f"rlhf_trainer.engines.vllm.serve.{name}" for name in ("server", "follower")]
COMMANDS = ("rlhf_operator.cli", "rlhf_operator.entry", "tests.support.haste")
MODULES = (*COMMANDS, "rlhf_trainer.torchrun", *ROLES, *VLLM)
LATER = ("torch.distributed.run", *server.IMPORTED, server.SERVER)
"""Modules that those import once they run."""
_ROOM = 1 << 15
"""Bytes that a process has in its memory for its command, and for its environment, as others read them."""
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_libc = ctypes.CDLL(None)
_execve = os.execve
_signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_inherited: list[object] = []
"""Objects whose end would close a file of the same number."""
_nurseries: list[socket.socket] = []
_lock = threading.Lock()


@dataclass(frozen=True)
class Start:
    """What a new process runs, and what it is given."""

    command: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    session: bool
    prepare: Callable[[], None] | None = None

    @property
    def argv(self) -> list[str]:
        """From the module or file on that Python runs."""
        rest = [*dropwhile(lambda word: word in ("-P", "-I", "-u"), self.command[1:])]
        return rest[1:] if rest[:1] == ["-m"] else rest

    @property
    def is_safe(self) -> bool:
        """Without the current directory in the path of modules."""
        return not {"-P", "-I"}.isdisjoint(self.command[:3])

    @property
    def is_warm(self) -> bool:
        program = next(iter(self.argv), None)
        return self.command[0] == sys.executable and program in (*MODULES, reaper.__file__)


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
        return os.fork() or become(start, files)


class FromNursery(Popen):
    """In one with threads, which a fork would lack, or not warm: forked from another process, it becomes this one's."""

    def _start(self, start: Start, files: Sequence[int]) -> int:
        fields = {name: getattr(start, name) for name in ("command", "environ", "cwd", "session")}
        request, was = json.dumps(fields).encode(), ctypes.c_int()
        with _lock:
            nursery = _nurseries[0] if _nurseries else _start_nursery()
            _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
            _libc.prctl(
                _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0
            )  # orphans are this process's, for as long as this takes
            try:
                socket.send_fds(nursery, [len(request).to_bytes(4, "big")], list(files))
                nursery.sendall(request)
                return int.from_bytes(_receive(nursery, 4), "big")
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


def _start_nursery() -> socket.socket:
    """A connection to the process from which a test's are forked; it ends when that is closed."""
    ours, theirs = socket.socketpair()
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    room = "x" * _ROOM
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), room],
            env=os.environ | {"RLHF_TEST_ROOM": room, "PYTHONPATH": path},
            pass_fds=[theirs.fileno()],
        )
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
            become(start, files)
        os.waitpid(between, 0)
        connection.sendall(os.read(reading, 4))
        for number in (*files, reading, writing):
            os.close(number)


def execute(path: str, command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """In place of `os.execve`."""
    start = Start(command, dict(environ), str(Path.cwd()), session=False)
    if not start.is_warm:
        _execve(path, command, environ)
    become(start, (0, 1, 2))


def become(start: Start, files: Sequence[int]) -> NoReturn:
    """In the new process: as if it had been executed."""
    code = 1
    try:
        gc.freeze()
        _inherited.extend((sys.stdout, sys.stderr))
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if start.session:
            os.setsid()
        for number, file in enumerate([os.dup(file) for file in files]):
            os.dup2(file, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if start.argv[0] in COMMANDS:
            _fork_nursery()
        if start.prepare is not None:
            start.prepare()
        os.chdir(start.cwd)
        os.environ.clear()
        os.environ.update(start.environ)
        _show(start)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        logging.getLogger().handlers.clear()
        atexit._clear()
        own = start.environ.get("PYTHONPATH", "")
        sys.path[:] = [
            *([] if start.is_safe else [start.cwd]),
            *filter(None, own.split(os.pathsep)),
            *_library(),
        ]
        importlib.invalidate_caches()
        torch = sys.modules["torch"]
        torch._dynamo.config.disable = start.environ.get("TORCH_COMPILE_DISABLE") == "1"
        if threads := start.environ.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        sys.argv = start.argv
        code = _run(sys.argv[0])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(module: str) -> int:
    """The exit code."""
    try:
        if module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            sys.modules.pop(module)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        code = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code


@cache
def _library() -> list[str]:
    own = os.environ["PYTHONPATH"].split(os.pathsep)
    return [folder for folder in sys.path if folder not in own]


def _show(start: Start) -> None:
    """Command and variables to others, in `/proc`, which shows the memory that has those with which Python began."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    variables = [f"{name}={value}" for name, value in start.environ.items()]
    for words, place in ((start.command, fields[45:47]), (variables, fields[47:49])):
        begin, end = map(int, place)
        block = b"".join(word.encode(errors="surrogateescape") + b"\0" for word in words)
        assert len(block) <= end - begin, f"no room for {len(block)} bytes"
        ctypes.memmove(begin, block.ljust(end - begin, b"\0"), end - begin)


def _warm_up() -> None:
    _library()
    subprocess.Popen, os.execve = Popen, execute  # type: ignore[misc, assignment]
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as from a terminal
    for module in (*MODULES, *LATER):
        importlib.import_module(module)
    setproctitle.getproctitle()  # it takes note of where the words of a command are, as they are still Python's own
    gc.freeze()


if __name__ == "__main__":
    _warm_up()
    _serve(socket.socket(fileno=int(sys.argv[1])))
