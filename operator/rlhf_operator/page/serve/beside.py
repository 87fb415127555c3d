"""Serves the page beside `rlhf run`: a process of the lowest priority, which ends with the run and cannot fail it."""

import asyncio
import os
import resource
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.reaper import end_with_parent

from ..folder.catalog import Catalog
from .server import address_of, listen, serving
from .static_files import find_assets

TOKEN_BYTES = 16
_END_SECONDS = 2.0
_MOST_MEMORY = 4 << 30
"""Of its address space, in bytes: it is the page that ends if a run's files are too much for it."""


@contextmanager
def page_beside(place: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Serves the runs of a folder while the body runs, and shows the address. Nothing without a built page. What goes
    wrong is one line. Call it from the main thread, whose end also ends the page."""
    process = None
    if find_assets():
        try:
            process = _start(place, show)
        except (OSError, InvalidJob) as error:
            show(f"the page could not be started: {error}; the run goes on without it")
    try:
        yield
    finally:
        if process is not None:
            _end(process)


def _start(place: Path, show: Callable[[str], None]) -> "subprocess.Popen[bytes]":
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with listen(0) as listener:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(listener.fileno()), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # a terminal's Ctrl-C is the run's
        )
        address = address_of(listener, token)
    assert process.stdin is not None
    try:
        process.stdin.write(f"{token}\n".encode())  # others could read it in its arguments
        process.stdin.flush()
    except OSError:
        _end(process)
        raise
    show(f"page on {address}")
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(OSError):
        process.kill()  # it writes nothing
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


async def _serve(catalog: Catalog, listener: socket.socket) -> None:
    """Serves until the input ends, as it does when the run has."""
    token, ended = sys.stdin.readline().strip(), asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    async with serving(catalog, token, listener):
        await ended.wait()


def main(descriptor: str, place: str) -> None:
    end_with_parent()
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    asyncio.run(_serve(Catalog([Path(place)]), socket.socket(fileno=int(descriptor))))


if __name__ == "__main__":
    main(*sys.argv[1:])
