"""Process groups of a user's functions and programs, ended and waited for with all that they started.

What a killed process leaves becomes a child of the nearest subreaper, else of the container's first process. One that
never waits for it keeps its number for good, and a pod or a user may have only so many.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .foreign_python import foreign_command

START_SECONDS = 300.0
"""Deadline of a worker to import what it runs, seconds."""
LONGEST_LINE = 64 << 20
"""Maximum size of a worker's reply in bytes: numbers, or texts that it keeps far below."""
_SECONDS, _POLL_SECONDS = 5.0, 0.01
"""Deadline of killed processes to end; a longer wait is the kernel's, for a disk or a driver."""
_STARTED_SECONDS = 1.0
"""Time of a start that nobody waits for any more to come to its end by itself."""


async def start(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """As `asyncio.create_subprocess_exec`, whose `options` give the process a group of its own; cancelled, it ends the
    process. That one may instead wait for ever then: for pipes, where the task is cancelled too that connects them, as
    all are at the end of an event loop."""
    starting = asyncio.ensure_future(asyncio.create_subprocess_exec(*command, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():
            await asyncio.wait([starting], timeout=_STARTED_SECONDS)
            starting.cancel()
        if not starting.cancelled() and starting.exception() is None:
            await end(starting.result())
        raise


async def start_worker(
    module: str,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    pass_fds: Sequence[int] = (),
    python: str | None = None,
) -> asyncio.subprocess.Process:
    """A process of its own group that runs a worker's module of ours, with pipes for `worker_pipes.take_pipes`;
    `environ` None: with this process's variables; `within`: words in front of its command, of a program that gets
    `pass_fds`, runs it and ends it with itself; `python`: another interpreter."""
    own = [sys.executable, "-P", "-m", module]
    command = own if python is None else foreign_command(python, module)
    return await start(
        *(*within, *command, *arguments, str(0 if within else os.getpid())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LONGEST_LINE,
        process_group=0,
        pass_fds=pass_fds,
        env=environ,
    )


async def end(leader: asyncio.subprocess.Process, *others: int) -> int | None:
    """SIGKILL to the group of `leader`, and a wait for all of it, and for groups `others` that end with it. The
    leader's exit code; None if it has not ended in time."""
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_SECONDS):
            await leader.wait()
            for group in (leader.pid, *others):
                while _has_children(group):
                    await asyncio.sleep(_POLL_SECONDS)
    return leader.returncode


def _has_children(group: int) -> bool:
    """True while this process has children in the group; waits for one that has ended."""
    try:
        os.waitpid(-group, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def how_ended(code: int) -> str:
    """The end of a process with this exit code, in words that follow its name."""
    if code >= 0:
        return f"ended with exit code {code}"
    hint = ", maybe for lack of memory" if code == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"
