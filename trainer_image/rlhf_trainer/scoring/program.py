"""Rewards from a program's exit code, in a kernel sandbox: bubblewrap's namespaces and resource limits."""

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlhf_api import strict_json
from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.rewards import RewardFunction

from . import process_groups
from .samples import Failure, Result, Sample, failed

TOOLS = {"bwrap": "bubblewrap 0.8 or newer", "prlimit": "util-linux", "choom": "util-linux"}
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt")
"""Directories of the root visible to a program, read-only, if they exist; no home, no volumes, no /proc."""
JOB, WORK, ROW = "/job", "/tmp", "/tmp/row.json"
"""Paths in the sandbox: the job's directory, read-only; the program's working directory, empty except for the dataset's
row.
"""
NOBODY = 65534
"""User of programs if the role runs as root, for whom the kernel does not enforce the process limit."""
PATH = "/usr/local/bin:/usr/bin:/bin"
PROCESSES, FILES = 32, 256
FILE_BYTES, WORK_BYTES = 16 << 20, 64 << 20
"""Limits: processes, open files; bytes of one file, and of all in the working directory."""
QUOTED = 300
START_SECONDS = 30


async def start(where: str, entry: RewardFunction) -> "Program":
    """`entry.program`, its sandbox tested. Raises InvalidJob if that cannot be created, or the program is not in it."""
    section = entry.program
    assert section is not None, "an entry of this kind"
    program = Program(
        f"{where}.program",
        section.command,
        memory_megabytes=section.memory_megabytes,
        cpu_seconds=section.cpu_seconds,
        concurrency=entry.concurrency,
        timeout=entry.timeout_seconds,
    )
    await program.start()
    return program


class Program:
    """Runs a command for each response, given on stdin: exit code 0 scores 1, any other 0.

    The sandbox has no network, no other processes, no credentials, an empty working directory of WORK_BYTES, and limits
    of memory (per process), CPU time, processes and file sizes. Exceeding those is the response's fault and gives a
    non-zero exit code. A wall-clock timeout or a failure to create the sandbox is a `Failure`. Implements `Scorer`.
    """

    def __init__(
        self,
        where: str,
        command: Sequence[str],
        *,
        memory_megabytes: int,
        cpu_seconds: int,
        concurrency: int,
        timeout: float,
    ) -> None:
        self.concurrency = concurrency
        self._where, self._command, self._timeout = where, tuple(command), timeout
        memory, cpu = memory_megabytes << 20, f"{cpu_seconds}:{cpu_seconds + 1}"
        self._limits = (
            *("prlimit", f"--as={memory}", f"--cpu={cpu}", f"--fsize={FILE_BYTES}", f"--nofile={FILES}"),
            *(f"--nproc={PROCESSES}", "--core=0", "--"),
        )

    def size(self, count: int) -> int:  # noqa: ARG002
        """One response per call."""
        return 1

    async def start(self) -> None:
        """Tests the sandbox. Raises InvalidJob if it cannot be created, or the program is not in it."""
        if missing := [
            f"{tool} (of {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None
        ]:
            self._refuse(f"needs a sandbox, and its tools are missing: install {', '.join(missing)}")
        check = ("/bin/sh", "-c", 'command -v "$0" >/dev/null', self._command[0])
        found = await self._run(check, Sample("", "", {}), START_SECONDS)
        if isinstance(found, Failure):
            self._refuse(
                f"needs a sandbox, and none can be made here: {found.reason}; allow user namespaces to this user (in a "
                "pod: spec.reward.pods.template with a seccompProfile that lets it unshare (docs/rewards.md)), or use "
                "a service"
            )
        if found != 0:
            self._refuse(
                f"{self._command[0]!r} is not a program in the sandbox, where the job's directory is {JOB}"
            )

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        return [await self._score(sample) for sample in samples]

    async def _score(self, sample: Sample) -> Result:
        code = await self._run(self._command, sample, self._timeout)
        return code if isinstance(code, Failure) else float(code == 0)

    async def _run(self, command: Sequence[str], sample: Sample, seconds: float) -> int | Failure:
        """Exit code of a command in the sandbox; 128 plus the signal that ended it."""
        status, told = os.pipe()
        os.set_blocking(status, False)
        try:
            with tempfile.TemporaryDirectory() as folder:
                row = Path(folder, "row.json")
                row.write_text(strict_json.dumps(sample.row), encoding="utf-8")
                if _root():  # NOBODY has to be able to read it
                    Path(folder).chmod(0o755)
                    row.chmod(0o644)
                return await self._bounded(command, sample, seconds, row, status, told)
        except (OSError, TimeoutError) as error:
            return failed(str(error) or type(error).__name__)
        finally:
            os.close(status)
            os.close(told)

    async def _bounded(
        self, command: Sequence[str], sample: Sample, seconds: float, row: Path, status: int, told: int
    ) -> int | Failure:
        """Runs the program as `_run` does; bubblewrap writes its status to the pipe `told`, which is read at `status`.
        Raises TimeoutError."""
        nobody = NOBODY if _root() else None
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *("choom", "-n", "1000", "--"),  # the OOM killer takes this process and not the server
                *("bwrap", "--json-status-fd", str(told), *_view(row), "--", *self._limits, *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(told,),
                process_group=0,
                user=nobody,
                group=nobody,
                extra_groups=None if nobody is None else [],
            )
            try:
                async with asyncio.timeout(seconds):
                    await process.communicate(sample.response.encode())
            except TimeoutError:
                raise TimeoutError(f"the program ran longer than {seconds:g} s") from None
            finally:
                said = _said(status)
                inside = [said["child-pid"]] if "child-pid" in said else []
                code = await process_groups.end(process, *inside)
            if (exit_code := said.get("exit-code")) is None:  # bubblewrap ended before the command did
                errors.seek(max(0, errors.seek(0, os.SEEK_END) - QUOTED))
                why = errors.read(QUOTED).decode(errors="replace").strip()
                return failed(f"the sandbox ended with exit code {code}: {why}")
        if exit_code == 128 + signal.SIGKILL:
            return failed("the program was ended by SIGKILL, maybe for lack of memory")
        return exit_code

    def _refuse(self, message: str) -> None:
        raise InvalidJob([Problem(self._where, message)])


def _view(row: Path) -> Iterator[str]:
    """Bubblewrap's options: mounts, and no namespace shared with the host."""
    yield from ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session")
    yield from ("--clearenv", "--setenv", "PATH", PATH, "--setenv", "HOME", WORK)
    for place in (Path("/", name) for name in SYSTEM):
        if place.is_symlink():
            yield from ("--symlink", str(place.readlink()), str(place))
        elif place.is_dir():
            yield from ("--ro-bind", str(place), str(place))
    yield from ("--dev", "/dev", "--ro-bind", str(Path.cwd()), JOB)
    yield from ("--size", str(WORK_BYTES), "--tmpfs", WORK, "--ro-bind", str(row), ROW, "--chdir", WORK)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")  # both are tmpfs without a size limit


def _said(status: int) -> dict[str, int]:
    """Status lines of bubblewrap so far, in JSON: `child-pid`, the leader of a group of its own in the sandbox, and the
    command's `exit-code`, which is missing if it never ran."""
    try:
        lines = os.read(status, 1 << 16).splitlines()
    except BlockingIOError:
        return {}
    return {key: value for line in lines for key, value in json.loads(line).items()}


def _root() -> bool:
    return os.geteuid() == 0
