"""Runs what a policy wrote: a command in a sandbox of its own, of which an environment reads the output and nothing
else."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from rlhf_api.host.reaper import descendants

from ..process.sandbox import PROCESSES, Sandbox, sandbox_limits

_LONGEST_OUTPUT = 64 << 10
_LOOK_SECONDS, _WALL = 0.2, 10
"""Interval at which a command's processes are counted, as the kernel does not for root; longest wait for its end, in
times its CPU seconds, most of which a busy machine or a sleeping command takes."""
_PLACES = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]()
"""Those among the commands that run at once, of each event loop."""


class Ran(NamedTuple):
    """End of a command: its exit code, 128 and the signal that ended it, or None where it took too long, too much, or
    wrote more than 64 KiB; and what it wrote to its standard output."""

    code: int | None
    output: str


async def run_in_sandbox(
    command: Sequence[str], stdin: str = "", *, seconds: int = 5, megabytes: int = 512
) -> Ran:
    """The end of a command that has no network, no variables, the system's folders read-only and an empty /tmp; each of
    at most 32 processes has `seconds` of CPU time and `megabytes` of address space. Raises OSError where no sandbox can
    be made, which is not the command's doing."""
    limits = sandbox_limits(megabytes, seconds)
    places = _PLACES.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(os.cpu_count() or 1))
    async with places:
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode())
            given.seek(0)
            sandbox = await Sandbox.start(command, limits, None, stdin=given, stdout=asyncio.subprocess.PIPE)
        reading = asyncio.ensure_future(_read(sandbox))
        try:
            output = await _output(sandbox, reading, _WALL * seconds)
        finally:
            reading.cancel()
            ended = await sandbox.end()
    if ended.error:
        raise OSError(ended.error)
    return Ran(ended.code if output is not None else None, (output or b"").decode(errors="replace"))


async def _output(sandbox: Sandbox, reading: "asyncio.Future[bytes]", seconds: float) -> bytes | None:
    """All of it, once the command has ended; None for too much of anything."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await sandbox.has_ended(_LOOK_SECONDS):
        late = asyncio.get_running_loop().time() > deadline
        flooded = reading.done() and len(reading.result()) > _LONGEST_OUTPUT
        if late or flooded or len(descendants(sandbox.pid)) > PROCESSES:
            return None
    output = await reading
    return None if len(output) > _LONGEST_OUTPUT else output


async def _read(sandbox: Sandbox) -> bytes:
    """Up to its end, or a byte more than it may have."""
    assert sandbox.output is not None, "it has a pipe"
    read = b""
    while len(read) <= _LONGEST_OUTPUT and (piece := await sandbox.output.read(_LONGEST_OUTPUT)):
        read += piece
    return read
