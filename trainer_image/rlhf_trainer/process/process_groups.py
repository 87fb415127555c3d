"""Process groups of a user's functions and programs, ended and waited for with all that they started.

What a killed process leaves becomes a child of the nearest subreaper, else of the container's first process. One that
never waits for it keeps its number for good, and a pod or a user may have only so many.
"""

import asyncio
import os
import signal
from contextlib import suppress

_SECONDS, _POLL_SECONDS = 5.0, 0.01
"""Deadline of killed processes to end; a longer wait is the kernel's, for a disk or a driver."""


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
