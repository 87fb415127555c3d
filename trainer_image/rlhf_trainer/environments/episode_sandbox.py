"""The sandbox of an episode: a pod of `spec.sandbox` that is its alone, or where the job has none a folder of this
machine, in which each command is a sandbox of its own. Imports no torch.

`open_sandbox` connects to the socket that SOCKET names: `{"waits": true}` comes as long as no pod is free, then
`{"error": reason}`, or `{"claimed": true}` and from there on what the pod's server sends (`sandbox_server`),
and last `{"exhausted": true}` where the pod has ended by what its commands took.
"""

import asyncio
import io
import json
import math
import os
import signal
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rlhf_api.contract.sandbox_server import LONGEST_OUTPUT, LONGEST_STDIN

from ..process.sandbox import WORK, Place, sandbox_limits
from .call_clock import seconds_left, waiting
from .sandboxed import LAST_SHARE, SHARE_OF_CALL, Ran, going_on, remove_folder, run_at

SOCKET = "RLHF_SANDBOXES"
_MEGABYTES = 4096
"""Of address space of each process, in a folder of this machine."""
_HANG_SECONDS = 20.0
"""Time beyond a command's own after which its pod is given up."""
_UNPACK = 'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode="r|").extractall(sys.argv[1])'
_EXHAUSTED = "commands have used up the memory or the disk of the sandbox's pod"
_GARBAGE = ValueError | KeyError | TypeError | OverflowError | RecursionError
"""Errors over what is no reply."""


class SandboxLost(OSError):
    """A sandbox has ended before its episode, or there was none: the episode may be played again in another one."""


class SandboxExhausted(Exception):
    """Commands have used up the memory or the disk of their sandbox, which has ended so: their own doing. Where a
    `step` lets it through, the episode ends with the rewards so far."""


class EpisodeSandbox(ABC):
    """Of one episode, whose files stay from one command to the next; a command's processes end with it."""

    is_exhausted = False
    codes_of_exhaustion: tuple[int, ...] = ()
    """Those of a command of ours which the kernel has ended for lack of the sandbox's own memory."""

    @abstractmethod
    async def run(self, command: Sequence[str], stdin: str | bytes = "", *, seconds: float = 60) -> Ran:
        """The end of a command, which has so many seconds, and seven tenths of what its call has left at most. Raises
        SandboxLost, and SandboxExhausted where an earlier one has ended the sandbox."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """False once it was closed, or lost."""

    @abstractmethod
    async def close(self) -> None:
        """Ends it; so does the end of its episode."""

    async def write(self, files: Mapping[str, str | bytes | Path]) -> None:
        """Writes files by their paths, with the folders that they need; a Path is copied with its mode. A path that is
        not absolute is of the directory in which commands begin. Raises OSError, as where one may not be written, and
        SandboxExhausted where the sandbox has no memory left for that."""
        for top in ("/", "."):
            mine = {name: file for name, file in files.items() if name.startswith("/") == (top == "/")}
            ran = await self.run(("python3", "-I", "-S", "-c", _UNPACK, top), _packed(mine)) if mine else None
            if ran is not None and (self.is_exhausted or ran.code in self.codes_of_exhaustion):
                raise SandboxExhausted(_EXHAUSTED)
            if ran is not None and ran.code != 0:
                raise OSError(f"{', '.join(mine)} cannot be written in the sandbox (exit code {ran.code})")


class PodSandbox(EpisodeSandbox):
    """In a pod, by the connection that has claimed it."""

    codes_of_exhaustion = (128 + signal.SIGKILL,)

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._turns = reader, writer, asyncio.Lock()

    @classmethod
    async def claim(cls, path: str) -> "PodSandbox":
        """Waits for a pod, which is no time of the call while pods come. Raises SandboxLost."""
        reader, writer = await asyncio.open_unix_connection(path)
        signs = 0
        try:
            async with waiting(lambda: signs):
                while not (reply := await _line(reader)).get("claimed"):
                    if "error" in reply:
                        raise SandboxLost(reply["error"])
                    signs += 1
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer)

    async def run(self, command: Sequence[str], stdin: str | bytes = "", *, seconds: float = 60) -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        if len(data) > LONGEST_STDIN:
            raise ValueError(f"a command's input has at most {LONGEST_STDIN} bytes; got {len(data)}")
        async with self._turns, going_on():
            if self.is_exhausted:
                raise SandboxExhausted(_EXHAUSTED)
            left = seconds_left()
            request = {
                "command": [*command],
                "seconds": min(seconds, SHARE_OF_CALL * left),
                "stdin": len(data),
            }
            line = json.dumps(request).encode() + b"\n"
            try:
                async with asyncio.timeout(min(seconds + _HANG_SECONDS, LAST_SHARE * left)):
                    with suppress(ConnectionError):  # it has ended, and may have said why
                        self._writer.write(line + data)
                        await self._writer.drain()
                    return await self._reply()
            except BaseException as error:
                self._writer.close()  # what comes next would be this command's
                if isinstance(error, TimeoutError | ConnectionError | asyncio.IncompleteReadError | _GARBAGE):
                    reason = f"the sandbox's pod has ended, or hangs, in {command[0]!r}"
                    raise SandboxLost(reason) from None
                raise

    async def _reply(self) -> Ran:
        """Raises one of _GARBAGE for what no server of ours sends: a command may be root in its pod."""
        reply = await _line(self._reader)
        if "exhausted" in reply:
            self.is_exhausted = True
            self._writer.close()
            return Ran(None, "")
        code, size = reply["code"], int(reply["output"])
        if size > LONGEST_OUTPUT or not (code is None or isinstance(code, int)):
            raise ValueError("no reply")
        return Ran(code, (await self._reader.readexactly(size)).decode(errors="replace"))

    @property
    def is_open(self) -> bool:
        return not self._writer.is_closing()

    async def close(self) -> None:
        self._writer.close()


class FolderSandbox(EpisodeSandbox):
    """In a folder of this machine, which is /tmp there."""

    def __init__(self) -> None:
        self._top = Path(tempfile.mkdtemp())
        self._top.chmod(0o711)  # programs may run as another user
        self._folder = self._top / "work"
        self._folder.mkdir()
        self._folder.chmod(0o777)

    async def run(self, command: Sequence[str], stdin: str | bytes = "", *, seconds: float = 60) -> Ran:
        limits = sandbox_limits(_MEGABYTES, math.ceil(seconds))
        return await run_at(Place(writable={WORK: self._folder}), command, limits, seconds, stdin)

    @property
    def is_open(self) -> bool:
        return self._top.exists()

    async def close(self) -> None:
        await asyncio.to_thread(remove_folder, self._top)


class OpenSandbox:
    """Of one episode, which has one at a time, and which it ends with."""

    def __init__(self) -> None:
        self._sandbox: EpisodeSandbox | None = None
        self._is_opening = self._is_over = False

    async def open(self) -> EpisodeSandbox:
        """Raises RuntimeError where the episode has one, SandboxLost where it has ended meanwhile."""
        if self._is_opening or (self._sandbox is not None and self._sandbox.is_open):
            raise RuntimeError("an episode has one sandbox at a time: close the one that it has first")
        self._is_opening = True
        try:
            self._sandbox = await _open()
        finally:
            self._is_opening = False
        if self._is_over:
            await self.close()
            raise SandboxLost("the episode has ended meanwhile")
        return self._sandbox

    async def close(self) -> None:
        self._is_over = True
        if self._sandbox is not None:
            await self._sandbox.close()


OPEN: ContextVar[OpenSandbox | None] = ContextVar("OPEN", default=None)
"""That of the episode that a task works on, if it does so."""


async def open_sandbox() -> EpisodeSandbox:
    """A sandbox of this episode alone: a pod of `spec.sandbox`, in its image, or a folder of this machine where the
    job has no pods. Raises RuntimeError where the episode has one already, SandboxLost where no pod comes, OSError."""
    of_episode = OPEN.get()
    return await (_open() if of_episode is None else of_episode.open())


async def _open() -> EpisodeSandbox:
    path = os.environ.get(SOCKET)
    return FolderSandbox() if path is None else await PodSandbox.claim(path)


def _packed(files: Mapping[str, str | bytes | Path]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, file in files.items():
            info, data = tarfile.TarInfo(name.lstrip("/")), b""
            if isinstance(file, Path):
                info.mode, data = file.stat().st_mode & 0o777, file.read_bytes()
            else:
                data = file.encode() if isinstance(file, str) else file
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


async def _line(reader: asyncio.StreamReader) -> dict[str, Any]:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise SandboxLost("the sandbox's pod has ended")
    made: dict[str, Any] = json.loads(line)
    return made
