"""A forked process becomes what it would be had it been executed: its environment, files, signals, path of modules and
program, and what others read of it in `/proc`."""

import atexit
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import runpy
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import NoReturn

from rlhf_api.host import reaper
from rlhf_trainer.engines.vllm.serve.launch import on_cpu

ROLES = [f"rlhf_trainer.roles.{name}" for name in ("trainer", "reward", "reference", "generator")]
VLLM = [f"rlhf_trainer.engines.vllm.serve.{name}" for name in ("server", "follower")]
TOOLS = [f"rlhf_trainer.commands.{name}" for name in ("data", "environment", "export", "repeat")]
STAND_INS = "tests.unit.operator.local.launch"
"""`rlhf` with stand-ins for its roles."""
COMMANDS = ("rlhf_operator.cli", "rlhf_operator.entry", "tests.support.clocks.haste", STAND_INS)
MODULES = (*COMMANDS, "rlhf_trainer.torchrun", *ROLES, *VLLM, *TOOLS)
OF_TESTS = "tests.unit."
"""Where the names of modules begin that tests run as programs, which are imported then."""
_inherited: list[object] = []
"""Objects whose end would close a file of the same number."""


@dataclass(frozen=True)
class Start:
    """The program of a new process, and its arguments."""

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
        """Never where GPUs are used: no fork of a process can that has used one."""
        program = next(iter(self.argv), None)
        known = program in (*MODULES, reaper.__file__) or (program or "").startswith(OF_TESTS)
        return self.command[0] == sys.executable and known and on_cpu()


def become(start: Start, files: Sequence[int], begin: Callable[[], None]) -> NoReturn:
    """In the new process: as if it had been executed. `begin`: what else a command does first."""
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
            begin()
        if start.prepare is not None:
            start.prepare()
        os.chdir(start.cwd)
        os.environ.clear()
        os.environ.update(start.environ)
        _show(start)
        tempfile.tempdir = None  # read anew, of TMPDIR
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        logging.getLogger().handlers.clear()
        if start.environ.get("PYTHONFAULTHANDLER"):
            faulthandler.enable(sys.stderr)
        atexit._clear()
        own = start.environ.get("PYTHONPATH", "")
        sys.path[:] = [
            *([] if start.is_safe else [start.cwd]),
            *filter(None, own.split(os.pathsep)),
            *library(),
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
            sys.modules.pop(module, None)
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
def library() -> list[str]:
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
