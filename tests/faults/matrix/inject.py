"""Faults on real processes: signals, connections that the kernel resets, memory that runs out, a store's disk."""

import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from tests.faults.matrix.cells import LOCAL, OUTAGE_SECONDS, PAUSE_SECONDS, STORE, Cell, Victim
from tests.support.run_processes import processes
from tests.support.servers.outage import Proxy
from tests.support.servers.seaweed import Server

FILL_BYTES = 1 << 20
SLOW_SECONDS = (0.4, 0.1)
"""Of a slowed process: stopped, and running, in turns."""


def inject(cell: Cell, workdir: Path, store: Server, way: Proxy) -> threading.Thread | None:
    """The fault of a cell, at once; the thread that ends it, where it ends by itself."""
    if cell.victim == STORE:
        return _STORE_FAULTS[cell.fault](store, way)
    return _PROCESS_FAULTS[cell.fault](find(workdir, LOCAL[cell.victim]))


def find(workdir: Path, victim: Victim) -> psutil.Process:
    """The process of a victim. Raises LookupError where there is not exactly one."""
    matches = [p for p in _below(workdir, victim.name) if _is(p, victim.part)]
    if len(matches) != 1:
        raise LookupError(f"{len(matches)} processes of {victim.name} have {victim.part!r}")
    return matches[0]


@contextmanager
def slowed(workdir: Path, name: str) -> Iterator[None]:
    """The processes of `name` run for a share of the time alone, by SIGSTOP and SIGCONT, whoever of them starts
    meanwhile; not the one that supervises them."""
    over = threading.Event()

    def take_turns() -> None:
        stopped, running = SLOW_SECONDS
        while not over.is_set():
            victims = [p for p in _below(workdir, name) if not _is(p, "reaper.py")]
            for act, seconds in ((psutil.Process.suspend, stopped), (psutil.Process.resume, running)) * 10:
                for process in victims:
                    with suppress(psutil.Error):
                        act(process)
                time.sleep(seconds)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _below(workdir: Path, name: str) -> list[psutil.Process]:
    # vLLM's engine has a title where its environment was: it is known as a descendant alone.
    family = [child for p in processes(workdir, name) for child in [p, *_children(p)]]
    return list(dict.fromkeys(family))


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is(process: psutil.Process, part: str) -> bool:
    name, _, value = part.partition("=")
    try:
        if value:
            environ = process.environ()
            return environ.get(name) == value and "roles.trainer" in " ".join(process.cmdline())
        return part in " ".join(process.cmdline()[:4])
    except psutil.Error:
        return False


def stop(process: psutil.Process | subprocess.Popen[bytes]) -> threading.Thread:
    """SIGSTOP; the thread that lets it go on after PAUSE_SECONDS."""
    process.send_signal(signal.SIGSTOP)

    def go_on() -> None:
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(signal.SIGCONT)

    return later(PAUSE_SECONDS, go_on)


def _cut(process: psutil.Process) -> None:
    """The kernel resets every connection that the process has."""
    for one in process.net_connections(kind="tcp"):
        if one.status == psutil.CONN_ESTABLISHED and one.raddr:
            ends = [
                f"{ip}:{port}" if ":" not in ip else f"[{ip}]:{port}" for ip, port in (one.laddr, one.raddr)
            ]
            subprocess.run(
                ["ss", "-K", "-t", "-n", "src", ends[0], "dst", ends[1]],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=10,
            )


def _starve(process: psutil.Process) -> None:
    """It gets no more memory: the limit of its address space is below what it has."""
    psutil.Process(process.pid).rlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))


def _refuse(_store: Server, way: Proxy) -> threading.Thread:
    way.set("refused")
    return later(OUTAGE_SECONDS, lambda: way.set("open"))


def _restart(store: Server, _way: Proxy) -> threading.Thread:
    store.process.kill()
    store.process.wait(10)
    return later(0, store.start)


def _fill(store: Server, _way: Proxy) -> threading.Thread:
    """Fills the file system that holds the store's data; it has to be one of its own (`__main__` mounts it)."""
    ballast = store.data / "ballast"
    with ballast.open("wb") as file, suppress(OSError):
        while True:
            file.write(b"\0" * FILL_BYTES)
            file.flush()
    assert shutil.disk_usage(store.data).free < FILL_BYTES
    return later(OUTAGE_SECONDS, ballast.unlink)


def later(seconds: float, act: Callable[[], object]) -> threading.Thread:
    """The thread that acts after so many seconds."""

    def wait() -> None:
        time.sleep(seconds)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


_PROCESS_FAULTS: dict[str, Callable[[psutil.Process], threading.Thread | None]] = {
    "SIGKILL": lambda process: process.kill(),
    "SIGTERM": lambda process: process.terminate(),
    "SIGSTOP": stop,
    "connections cut": _cut,
    "out of memory": _starve,
}
_STORE_FAULTS: dict[str, Callable[[Server, Proxy], threading.Thread]] = {
    "connections cut": _refuse,
    "SIGKILL": _restart,
    "SIGSTOP": lambda store, _way: stop(store.process),
    "disk full": _fill,
}
