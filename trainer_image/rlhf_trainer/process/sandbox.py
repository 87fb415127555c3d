"""Kernel sandbox of one command: bubblewrap's namespaces, a filter of system calls, and resource limits."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from rlhf_api.host.job_files import FOLDER

from . import process_groups
from .limits import Limits
from .syscall_filter import filter_pipe

TOOLS = {"bwrap": "bubblewrap 0.8 or newer", "prlimit": "util-linux", "choom": "util-linux"}
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt")
"""Directories of the root visible to a program, read-only, if they exist; no home, no volumes, no /proc."""
JOB, CARRIED, WORK = "/job", "/files", "/tmp"
"""Paths in the sandbox: the job's directory, read-only; the files that the job carries, too; the program's working
directory, empty except for its files."""
NOBODY = 65534
"""User of programs if the role runs as root, for whom the kernel does not enforce the process limit."""
PATH = "/usr/local/bin:/usr/bin:/bin"
WORK_BYTES = 64 << 20
"""Maximum size of all files in the working directory."""
PROCESSES = 32
"""Of a command and what it starts, at once."""
QUOTED = 300


def sandbox_limits(megabytes: int, cpu_seconds: int) -> Limits:
    """Of each process of a command: `megabytes` of address space, seconds of CPU time, 16 MiB of a file, 256 open
    ones."""
    return Limits(megabytes, cpu_seconds=cpu_seconds, file_bytes=16 << 20, files=256, processes=PROCESSES)


@dataclass(frozen=True)
class Place:
    """Surroundings of a command: folders of this machine that it finds at paths of its own, read-only or to write to,
    its working directory, and its variables."""

    readable: Mapping[str, Path] = field(default_factory=dict)
    writable: Mapping[str, Path] = field(default_factory=dict)
    directory: str = WORK
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit:
    """End of a sandbox: the command's exit code, 128 plus the signal that ended it, or None if it had not ended; and
    `error`, the reason why the sandbox itself has failed."""

    code: int | None = None
    error: str = ""


class Sandbox:
    """A command that runs in a sandbox; `end` has to be awaited."""

    def __init__(self, process: asyncio.subprocess.Process, status: int, errors: IO[bytes]) -> None:
        self._process, self._status, self._errors = process, status, errors

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        limits: Limits,
        files: Mapping[str, Path] | None,
        *,
        place: Place | None = None,
        stdin: int | IO[bytes] = asyncio.subprocess.DEVNULL,
        stdout: int = asyncio.subprocess.DEVNULL,
    ) -> Self:
        """Starts a command; `files`: those in its working directory, name -> file, or None for a sandbox that sees
        neither files nor the job's directory. Raises OSError."""
        status, status_end = os.pipe()
        os.set_blocking(status, False)
        errors, nobody = tempfile.TemporaryFile(), NOBODY if is_root() else None  # noqa: SIM115
        tool, *limited = limits.command()
        tool = (
            shutil.which(tool, path=PATH) or tool
        )  # whatever PATH the place has, which its commands may write to
        try:
            with filter_pipe() as rules:
                process = await process_groups.start(
                    *("choom", "-n", "1000", "--"),  # the OOM killer takes this process and not the server
                    *("bwrap", "--json-status-fd", str(status_end), "--seccomp", str(rules)),
                    *(*_view(files, place or Place()), "--", tool, *limited, *command),
                    stdin=stdin,
                    stdout=stdout,
                    stderr=errors,
                    pass_fds=(status_end, rules),
                    process_group=0,
                    user=nobody,
                    group=nobody,
                    extra_groups=None if nobody is None else [],
                )
        except BaseException:
            os.close(status)
            errors.close()
            raise
        finally:
            os.close(status_end)
        return cls(process, status, errors)

    @property
    def pid(self) -> int:
        """The process whose descendants are all processes of the sandbox."""
        return self._process.pid

    @property
    def output(self) -> asyncio.StreamReader | None:
        """The command's standard output, if it is a pipe."""
        return self._process.stdout

    async def has_ended(self, seconds: float) -> bool:
        """Waits for the command's end, at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return self._process.returncode is not None

    async def end(self) -> Exit:
        """Ends the command, if it has not, with all that it started."""
        ended_itself = self._process.returncode is not None
        try:
            status = _status(self._status)
            inside = [status["child-pid"]] if "child-pid" in status else []
            code = await process_groups.end(self._process, *inside)
            if "exit-code" in status or not (ended_itself or (code or 0) > 0):
                return Exit(status.get("exit-code"))
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - QUOTED))
            reason = self._errors.read(QUOTED).decode(errors="replace").strip()
            return Exit(error=f"the sandbox ended with exit code {code}: {reason}")
        finally:
            os.close(self._status)
            self._errors.close()


def is_root() -> bool:
    """True where programs run as NOBODY: not in a user namespace that has no such user."""
    ranges = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return os.geteuid() == 0 and any(first <= NOBODY < first + count for first, _, count in ranges)


def _view(files: Mapping[str, Path] | None, place: Place) -> Iterator[str]:
    """Bubblewrap's options: mounts, and no namespace shared with the host."""
    job = str(Path.cwd())
    yield from ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session")
    yield "--clearenv"
    for name, value in {"PATH": PATH, "HOME": WORK, **place.variables}.items():
        yield from ("--setenv", name, value)
    for folder in (Path("/", name) for name in SYSTEM):
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))
    yield from _hidden(str(Path(os.environ.get("RLHF_RUN_CONFIG", "/")).parent))
    yield from ("--dev", "/dev")
    if files is not None:
        yield from ("--ro-bind", job, JOB)
        if carried := os.environ.get(FOLDER):
            yield from ("--ro-bind", carried, CARRIED)
    else:
        yield from _hidden(job)
    yield from ("--size", str(WORK_BYTES), "--tmpfs", WORK)
    for name, file in (files or {}).items():
        yield from ("--ro-bind", str(file), f"{WORK}/{name}")
    for option, folders in (("--ro-bind", place.readable), ("--bind", place.writable)):
        for path, own in folders.items():
            yield from (option, str(own), path)
    yield from ("--chdir", place.directory)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")  # both are tmpfs without a size limit


def _hidden(folder: str) -> Iterator[str]:
    """Options that show a directory below those of `SYSTEM` as empty."""
    if Path(folder).parts[1:2] and Path(folder).parts[1] in SYSTEM:
        yield from ("--tmpfs", folder, "--remount-ro", folder)


def _status(pipe: int) -> dict[str, int]:
    """Status lines of bubblewrap so far, in JSON: `child-pid`, the leader of a group of its own in the sandbox, and the
    command's `exit-code`, which is missing if it never ran."""
    try:
        lines = os.read(pipe, 1 << 16).splitlines()
    except BlockingIOError:
        return {}
    return {key: value for line in lines for key, value in json.loads(line).items()}
