"""Rewards from a program's exit code, in a sandbox; responses may be executed in another one, under its questions."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host import strict_json
from rlhf_api.sections.reward import ScoreFunction

from ..process.sandbox import JOB, TOOLS, Exit, Sandbox, is_root, sandbox_limits
from ..process.timeouts import Timeouts
from ..process.usage import out_of_memory_kills, spent, usage
from .samples import Result, Sample, failed

ROW, RESPONSE = "row.json", "response.txt"
"""Files in a program's working directory: the dataset's row, and the response, which is also its stdin."""
START_SECONDS = 30
LOOK_SECONDS = 1.0
"""Interval of the looks at a running program's usage; asleep for half of it, the program does not count among those
that run at once. A tenth of a shorter timeout."""
SLEEPING = 8
"""Programs in all, those asleep included, for each that may run at once."""


async def start(where: str, entry: ScoreFunction) -> "Program":
    """`entry.program`, its sandbox tested. Raises InvalidJob if that cannot be created, or the program is not in it."""
    section = entry.program
    assert section is not None, "an entry of this kind"
    program = Program(
        f"{where}.program",
        section.command,
        section.candidate,
        memory_megabytes=section.memory_megabytes,
        cpu_seconds=section.cpu_seconds,
        concurrency=entry.concurrency,
        timeout=entry.timeout_seconds,
        failure_score=entry.failure_score,
    )
    await program.start()
    return program


class Program:
    """Runs a command for each response: exit code 0 scores 1. Implements `Scorer`.

    All else that the response can bring about scores `failure_score`: any other exit code, a signal, a limit of the
    sandbox, and running too long. No score (`Failure`) is what it cannot: a sandbox that could not be made or was
    ended, a kill for lack of memory, and a timeout that all responses share (`Timeouts`). Time in which the program
    waits for a CPU does not count.
    """

    def __init__(
        self,
        where: str,
        command: Sequence[str],
        candidate: Sequence[str] | None = None,
        *,
        memory_megabytes: int,
        cpu_seconds: int,
        concurrency: int,
        timeout: float,
        failure_score: float = 0.0,
    ) -> None:
        self.concurrency = SLEEPING * concurrency
        self._where, self._command, self._candidate = where, command, candidate
        self._limits, self._timeout = sandbox_limits(memory_megabytes, cpu_seconds), timeout
        self._failure_score, self._timeouts = failure_score, Timeouts()
        self._turns = asyncio.Semaphore(concurrency)

    def size(self, count: int) -> int:  # noqa: ARG002
        """One response per call."""
        return 1

    async def start(self) -> None:
        """Tests the sandbox. Raises InvalidJob if it cannot be created, or the program is not in it."""
        missing = [f"{tool} (of {package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
        if missing:
            self._refuse(f"needs a sandbox, and its tools are missing: install {', '.join(missing)}")
        await self._check("command", self._command[0], sees_job=True)
        if self._candidate is not None:
            await self._check("candidate", self._candidate[0], sees_job=False)

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        return [await self._score(sample) for sample in samples]

    async def _score(self, sample: Sample) -> Result:
        turn = _Turn(self._turns)
        await turn.take()
        try:
            with _files(sample) as files:
                return await self._run(files, turn)
        except OSError as error:
            return failed(str(error) or type(error).__name__)
        finally:
            turn.give_back()

    async def _run(self, files: Mapping[str, Path], turn: "_Turn") -> Result:
        """Runs the program for the response in `files`. Raises OSError where it could not be started."""
        began, kills, running, exits = time.monotonic(), out_of_memory_kills(), list[Sandbox](), list[Exit]()
        try:
            await self._start(files, running)
            in_time = await self._ends(running, turn)
        finally:
            exits += [await sandbox.end() for sandbox in running]
        for ended in exits:
            if ended.error:
                return failed(ended.error)
        if not in_time:
            if self._timeouts.is_of_response(began):
                return self._failure_score
            return failed(f"the program ran longer than {self._timeout:g} s, and no other ended in time")
        self._timeouts.record_end()
        if exits[0].code == 0:
            return 1.0
        if out_of_memory_kills() > kills:
            return failed("the kernel killed a process for lack of memory while the program ran")
        return self._failure_score

    async def _start(self, files: Mapping[str, Path], running: list[Sandbox]) -> None:
        """Starts the command and adds it to `running`; then the candidate, stdout of each the stdin of the other."""
        if self._candidate is None:
            only_row = {ROW: files[ROW]}
            with files[RESPONSE].open("rb") as response:
                running.append(await Sandbox.start(self._command, self._limits, only_row, stdin=response))
            return
        pipes = (*os.pipe(), *os.pipe())
        questions_out, questions_in, replies_out, replies_in = pipes
        try:
            for command, sees, stdin, stdout in (
                (self._command, files, replies_out, questions_in),
                (self._candidate, None, questions_out, replies_in),
            ):
                sandbox = await Sandbox.start(command, self._limits, sees, stdin=stdin, stdout=stdout)
                running.append(sandbox)
        finally:
            for end in pipes:
                os.close(end)

    async def _ends(self, running: Sequence[Sandbox], turn: "_Turn") -> bool:
        """True once the command has ended, False once its time is over. Time is counted in the pauses between looks, so
        that a role that is frozen meanwhile takes none of it."""
        interval = min(LOOK_SECONDS, self._timeout / 10)
        pause, passed = interval, 0.0
        while not await running[0].has_ended(pause):
            passed += pause
            used = usage(sandbox.pid for sandbox in running)
            left = self._timeout - spent(used, passed)
            if left <= 0:
                return False
            if passed - used.waited - used.computed >= interval / 2:
                turn.give_back()
            pause = left if turn.is_given_back else min(interval, left)
        return True

    async def _check(self, field: str, program: str, *, sees_job: bool) -> None:
        """Raises InvalidJob unless a sandbox can be made, and has the program."""
        test = ("/bin/sh", "-c", 'command -v "$0" >/dev/null', program)
        try:
            sandbox = await Sandbox.start(test, self._limits, {} if sees_job else None)
            in_time = await sandbox.has_ended(START_SECONDS)
            ended = await sandbox.end()
            reason = ended.error if in_time else f"it took longer than {START_SECONDS} s"
        except (OSError, KeyError) as error:  # KeyError: a machine whose system calls are not known
            ended, reason = Exit(), str(error) or type(error).__name__
        if reason:
            self._refuse(
                f"needs a sandbox, and none can be made here: {reason}; allow user namespaces to this user (in a "
                "pod: spec.reward.pods.template with a seccompProfile that lets it unshare "
                "(docs/guides/rewards.md)), or use a service"
            )
        if ended.code != 0:
            place = f"the job's directory is {JOB}" if sees_job else "the job's directory is not visible"
            self._refuse(f"{program!r} is not a program in the {field}'s sandbox, where {place}")

    def _refuse(self, message: str) -> None:
        raise InvalidJob([Problem(self._where, message)])


class _Turn:
    """A place among the programs that run at once."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns, self.is_given_back = turns, True

    async def take(self) -> None:
        await self._turns.acquire()
        self.is_given_back = False

    def give_back(self) -> None:
        if not self.is_given_back:
            self.is_given_back = True
            self._turns.release()


@contextmanager
def _files(sample: Sample) -> Iterator[dict[str, Path]]:
    """The row and the response as files, name -> file."""
    contents = {ROW: strict_json.dumps(sample.row), RESPONSE: sample.response}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, name) for name in contents}
        for name, file in files.items():
            file.write_bytes(contents[name].encode())
            if is_root():  # NOBODY has to be able to read them
                file.chmod(0o644)
        if is_root():
            Path(folder).chmod(0o755)
        yield files
