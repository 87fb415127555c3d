"""The processes of a job on this machine: started, watched and ended."""

import asyncio
import datetime
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlhf_api.roles import Role
from rlhf_api.run import Process, RunConfig, command, environment, replicas, roles_of
from rlhf_api.spec import Spec

from ..exit_reasons import exit_words, telling_line
from ..restart_policy import Ended, ProcessState
from . import child, gpus

Command = Callable[[RunConfig, Process, str], list[str]]
"""`rlhf_api.run.command`, or what a test starts in its place."""
_STOP_SECONDS = 5.0
_TAIL_BYTES = 65536


class Supervised:
    """One process of a job, through all its starts: the name stays, each start has a new uid."""

    def __init__(self, process: Process, logs: Path) -> None:
        self.process = process
        self.log, self.end = logs / f"{process.name}.log", logs / f"{process.name}.end"
        self.uid = ""
        self.ready = False
        self.started: float | None = None
        self.ended: Ended | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_from = 0
        self._killed_because = ""

    @property
    def address(self) -> str:
        return f"http://{self.process.host}:{self.process.port}"

    @property
    def running(self) -> bool:
        return self.started is not None and self.ended is None

    def seen(self) -> ProcessState:
        return ProcessState(self.process.role, self.process.index, self.started, self.ready, self.ended)

    def start(self, config: RunConfig, config_file: Path, token: str, make: Command = command) -> None:
        """Start it (again). Raises OSError where the machine refuses a process."""
        argv = make(config, self.process, sys.executable)
        variables = environment(
            config, self.process, config_file=str(config_file), termination_log=str(self.end)
        )
        environ = {**os.environ, **variables, "RLHF_TOKEN": token}
        environ |= gpus.variables(config.spec, self.process, gpus.present(environ))
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), environ.get("PYTHONPATH")]))
        environ["PYTHONUNBUFFERED"] = "1"
        environ.setdefault("OMP_NUM_THREADS", str(threads_each(config.spec, os.cpu_count() or 1)))
        self.end.unlink(missing_ok=True)
        self.uid, self.ready, self.ended, self._killed_because = str(uuid.uuid4()), False, None, ""
        with self.log.open("ab") as log:
            log.write(
                f"=== {datetime.datetime.now().isoformat(' ', 'seconds')} {shlex.join(argv)}\n".encode()
            )
            log.flush()
            self._log_from = log.tell()
            self._popen = subprocess.Popen(
                [sys.executable, "-I", str(child.__file__), str(os.getpid()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
            )
        self.started = time.monotonic()

    def observe(self) -> bool:
        """Whether it has ended since the last look."""
        if self._popen is None or self.ended is not None or self._popen.poll() is None:
            return False
        raw = self._popen.returncode
        text = self.end.read_text(errors="replace") if self.end.exists() else ""
        code = raw if raw >= 0 else 128 - raw
        how = self._killed_because or exit_words(code)
        telling = text.strip() or ("" if self._killed_because else telling_line(self._tail()))
        reason = f"{how}: {telling}" if telling else how
        self.ended = Ended(time.monotonic(), code, f"{reason}; see {_short(self.log)}")
        return True

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self, why: str = "") -> None:
        """End it with everything below it; `why` is what will be said of its end."""
        self._killed_because = why
        self._signal(child.KILL)

    def _signal(self, number: int) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def _tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(self._log_from, self.log.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace")


def threads_each(spec: Spec, cores: int) -> int:
    """Compute threads of each process, so that all of a job's processes together do not want more than `cores`:
    threads of different processes that wait for each other on one core cost several times the work itself.
    """
    trainers = spec.trainer.replicas * spec.trainer.processes_per_replica
    others = sum(replicas(spec, role) for role in roles_of(spec) if role is not Role.TRAINER)
    return max(1, cores // (trainers + others))


async def stop_all(processes: Sequence[Supervised], impatient: Callable[[], bool]) -> None:
    """End every process: SIGTERM, and SIGKILL to all that is left after a while, or once `impatient`.

    Returns when no descendant of this process is left.
    """
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    while _any_alive(processes) and time.monotonic() < deadline and not impatient():
        await asyncio.sleep(0.05)
    for process in processes:
        process.kill()
    deadline = time.monotonic() + 2.0
    while _any_alive(processes) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    child.kill_descendants(os.getpid())


def _any_alive(processes: Iterable[Supervised]) -> bool:
    for process in processes:
        process.observe()
    return any(process.running for process in processes)


def _short(path: Path) -> str:
    """Relative to where the user is, if below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
