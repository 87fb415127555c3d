"""Runs what a policy wrote: a command in a sandbox of its own, of which an environment reads the output and nothing
else."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from rlhf_api.host.reaper import descendants

from ..process.limits import Limits, holds_more
from ..process.sandbox import PROCESSES, WORK_BYTES, Place, Sandbox, sandbox_limits
from ..process.usage import spent, usage
from .call_clock import seconds_left, waiting

_LONGEST_OUTPUT = 64 << 10
_MOST_FILES = 10_000
_LONGEST_WORD = (128 << 10) - 1
"""Bytes of a command's word: Linux takes 32 pages with the NUL behind it (MAX_ARG_STRLEN)."""
_LOOK_SECONDS, _WALL = 0.2, 10
"""Interval at which a command's processes are counted, as the kernel does not for root; longest wait for its end, in
times its CPU seconds, most of which a busy machine or a sleeping command takes."""
SHARE_OF_CALL, LAST_SHARE = 0.7, 0.85
"""Shares of what is left of a call's seconds that its command may take, without the time in which it waits for a CPU
and with it: then the call still has a reply."""

_REMOVE = 'chmod -R u+rwx "$0"; rm -rf "$0"'


class _Places:
    """Those among the commands that run at once, one for each core."""

    def __init__(self) -> None:
        self._free, self.progress = asyncio.Semaphore(os.cpu_count() or 1), 0
        """Counts on as commands are looked at, each of which has limits, and as they end."""

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        async with waiting_for_commands():
            await self._free.acquire()
        try:
            yield
        finally:
            self.progress += 1
            self._free.release()


_PLACES = WeakKeyDictionary[asyncio.AbstractEventLoop, _Places]()


class Ran(NamedTuple):
    """End of a command: its exit code, 128 and the signal that ended it, or None where it took too long, too much, or
    wrote more than 64 KiB; and what it wrote to its standard output."""

    code: int | None
    output: str


def _places() -> _Places:
    """Of this event loop."""
    return _PLACES.setdefault(asyncio.get_running_loop(), _Places())


def waiting_for_commands() -> AbstractAsyncContextManager[None]:
    """A wait for commands of any episode, which does not count as a call's while they go on."""
    places = _places()
    return waiting(lambda: places.progress)


@asynccontextmanager
async def going_on() -> AsyncIterator[None]:
    """A command elsewhere, which counts as one that goes on: it has limits of its own."""

    async def count() -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            _places().progress += 1

    counting = asyncio.ensure_future(count())
    try:
        yield
    finally:
        counting.cancel()


async def run_in_sandbox(
    command: Sequence[str], stdin: str = "", *, seconds: int = 5, megabytes: int = 512
) -> Ran:
    """The end of a command that has no network, no variables, the system's folders read-only and an empty /tmp; each of
    at most 32 processes has `seconds` of CPU time and `megabytes` of address space, and all together hold no more.
    Raises OSError where no sandbox can be made, which is not the command's doing."""
    limits = sandbox_limits(megabytes, seconds)
    return await run_at(Place(), command, limits, _WALL * seconds, stdin)


async def run_at(
    place: Place,
    command: Sequence[str],
    limits: Limits,
    seconds: float,
    stdin: str | bytes = "",
    *,
    before: tuple[int, int] = (0, 0),
) -> Ran:
    """As `run_in_sandbox`, with the folders of a place, for at most so many seconds, in which a wait for a CPU does not
    count, and before the call that it is of has taken too long. A command that lets what it may
    write grow beyond 64 MiB or 10,000 files, besides the sizes that it had `before`, is ended; in a place that is
    larger already it writes nothing more."""
    if reason := _unfit(command):
        return Ran(127, f"{reason}\n")
    growth = _Growth([*place.writable.values()], before)
    limits = replace(limits, file_bytes=0) if growth.is_full else limits
    async with _places().taken():
        with tempfile.TemporaryFile() as given:
            given.write(stdin.encode() if isinstance(stdin, str) else stdin)
            given.seek(0)
            pipe = asyncio.subprocess.PIPE
            sandbox = await Sandbox.start(command, limits, None, place=place, stdin=given, stdout=pipe)
        reading = asyncio.ensure_future(_read(sandbox))
        try:
            output = await _output(sandbox, reading, seconds, growth, limits.address)
        finally:
            reading.cancel()
            ended = await sandbox.end()
    if ended.error:
        raise OSError(ended.error)
    return Ran(ended.code if output is not None else None, (output or b"").decode(errors="replace"))


def _unfit(command: Sequence[str]) -> str:
    """Reason why the kernel takes these words for no program; empty if it may."""
    try:
        words = [os.fsencode(word) for word in command]
    except UnicodeEncodeError as error:
        return str(error)
    if any(b"\0" in word for word in words):
        return "embedded null byte"
    return "a word of the command is too long" if max(map(len, words)) > _LONGEST_WORD else ""


def remove_folder(folder: Path) -> None:
    """Also folders that are nested deeper, or closed tighter, than Python removes."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        subprocess.run(("sh", "-c", _REMOVE, folder), check=False, capture_output=True)


class _Growth:
    """Of folders that a command writes to: those that were too large before may not grow, so that they can be
    emptied."""

    def __init__(self, folders: Sequence[Path], before: tuple[int, int]) -> None:
        size, count = sizes_of(folders)
        most_bytes, most_files = before[0] + WORK_BYTES, before[1] + _MOST_FILES
        self.is_full = size > most_bytes
        self._folders, self._most = folders, (max(size, most_bytes), max(count, most_files))

    def is_too_much(self) -> bool:
        return any(size > most for size, most in zip(sizes_of(self._folders), self._most, strict=True))


def sizes_of(folders: Iterable[Path]) -> tuple[int, int]:
    """Bytes and number of all files and folders in some. What cannot be looked into counts as all that there may be,
    where it is nested too deeply, and as a quarter of it, where it is closed, so that a few may be."""
    size, count, left = 0, 0, [*folders]
    while left:
        folder = left.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    size, count = size + entry.stat(follow_symlinks=False).st_size, count + 1
                    if entry.is_dir(follow_symlinks=False):
                        left.append(folder / entry.name)
        except FileNotFoundError:  # it is gone
            pass
        except PermissionError:
            size, count = size + WORK_BYTES // 4, count + _MOST_FILES // 4
        except OSError:
            count += _MOST_FILES
    return size, count


async def _output(
    sandbox: Sandbox,
    reading: "asyncio.Future[bytes]",
    seconds: float,
    growth: _Growth,
    megabytes: int | None,
) -> bytes | None:
    """All of it, once the command has ended; None for too much of anything, as of megabytes of memory in all. Raises
    TimeoutError where its call has no time left because it had no CPU."""
    began, left = asyncio.get_running_loop().time(), seconds_left()
    seconds = min(seconds, SHARE_OF_CALL * left)
    while not await sandbox.has_ended(_LOOK_SECONDS):
        _places().progress += 1
        passed = asyncio.get_running_loop().time() - began
        late = passed > seconds and spent(usage([sandbox.pid]), passed) > seconds
        if not late and passed > LAST_SHARE * left:
            raise TimeoutError(f"a command has waited for a CPU for most of {passed:.0f} s")
        flooded = reading.done() and len(reading.result()) > _LONGEST_OUTPUT
        inside = descendants(sandbox.pid)
        too_many = len(inside) > PROCESSES
        too_large = megabytes is not None and holds_more(
            [Path("/proc", str(pid)) for pid in inside], megabytes
        )
        if late or flooded or too_many or too_large or growth.is_too_much():
            return None
    output = await reading
    return None if len(output) > _LONGEST_OUTPUT or growth.is_too_much() else output


async def _read(sandbox: Sandbox) -> bytes:
    """Up to its end, or a byte more than it may have."""
    assert sandbox.output is not None, "it has a pipe"
    read = b""
    while len(read) <= _LONGEST_OUTPUT and (piece := await sandbox.output.read(_LONGEST_OUTPUT)):
        read += piece
    return read
