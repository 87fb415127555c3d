"""Subreaper of one command: none of its descendants outlives the command, or the launcher.

`python -I reaper.py PARENT_PID COMMAND...`, in a session of its own. As a subreaper it becomes the parent of orphaned
descendants, and kills them when the command ends. The kernel signals it when the launcher dies, also by SIGKILL; it
then kills the whole tree. SIGTERM is forwarded to the command only, as to a container's first process. If the reaper
itself is killed, its launcher, also a subreaper, becomes the parent of its descendants and kills them
(`rlhf_operator/local/processes/stopping.py`). Standard library only: it starts before every role.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

KILL = signal.SIGUSR1
"""Signal to this process: kill the whole tree at once. The kernel sends it too when the launcher is gone."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_KILL_SECONDS = 5.0
"""Longest wait for killed descendants to be gone."""
_SIGNALLED = 128
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphaned descendants become children of this process, which is to wait for their ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int, besides: Collection[int] = ()) -> list[int]:
    """Every live descendant of `pid`, each after its parent, except `besides` and their descendants.

    A process whose first thread has ended looks like a zombie, and keeps its children until its other threads have
    ended too.
    """
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for child, state, parent in _processes():
        if child not in besides:
            children.setdefault(parent, []).append(child)
        if state == "Z":
            zombies.add(child)
    reached = [pid]
    for parent in reached:
        reached += children.get(parent, [])
    return [process for process in reached[1:] if process not in zombies]


def _processes() -> Iterator[tuple[int, str, int]]:
    """(pid, state, parent's pid) of all processes."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end meanwhile; its state and parent follow the name in parentheses.
        with contextlib.suppress(OSError):
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            yield int(stat.parent.name), state, int(parent)


def kill(processes: Iterable[int]) -> None:
    """SIGKILL to each process that still exists."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def kill_descendants(pid: int, besides: Collection[int] = ()) -> None:
    """SIGKILL to all descendants of `pid`, except `besides` and theirs, repeated until none is left: a killed process
    may just have forked. Parents come first: a shell that lives on says `Killed` in the log of the command."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (alive := descendants(pid, besides)) and time.monotonic() < deadline:
        kill(alive)
        time.sleep(0.01)


def reap_adopted(besides: Collection[int]) -> None:
    """Waits for ended children of this process, except `besides`, whose exit codes others collect."""
    for child, state, parent in _processes():
        if state == "Z" and parent == os.getpid() and child not in besides:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Has the kernel send signal `number` to this process when the thread that started it ends, so start it from the
    parent's main thread. Check afterwards that the parent has not ended before the call."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _end_with(parent: int, number: int) -> None:
    """As `end_with_parent`, and exits if `parent` has already ended."""
    end_with_parent(number)
    if os.getppid() != parent:
        os._exit(_SIGNALLED + signal.SIGKILL)


def main(parent: int, command: list[str]) -> int:
    """The command's exit code, or 128 plus the signal that ended it."""
    become_subreaper()
    # Blocked from here on and taken one by one below; the command starts with none blocked.
    signals = {KILL, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _end_with(parent, KILL)
    own = os.getpid()

    def before_exec() -> None:
        _end_with(own, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    try:
        child = subprocess.Popen(command, preexec_fn=before_exec)
    except OSError as error:
        print(f"{command[0]}: cannot be started: {error.strerror}", file=sys.stderr, flush=True)
        return 127
    while child.poll() is None:
        number = signal.sigwait(signals)
        if number == KILL:
            kill_descendants(os.getpid())
        elif number != signal.SIGCHLD:
            child.send_signal(number)
    kill_descendants(os.getpid())
    return child.returncode if child.returncode >= 0 else _SIGNALLED - child.returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
