"""A process of a job on this machine: started, watched and ended through its reaper."""

import asyncio
import datetime
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from rlhf_api.contract.run import Process, RunConfig, command, environment, listens, places, role_token
from rlhf_api.host import reaper
from rlhf_api.host.oom import OomKills
from rlhf_api.roles import LIVE_FAILURES, LIVE_SECONDS, Role
from rlhf_api.spec import Spec

from ...supervision.exit_reasons import cause, exit_words, failure_type
from ...supervision.process_state import Ended, ProcessState
from ...supervision.role_client import ControlClient
from ..resources import gpus
from .log import ProcessLog

Command = Callable[[RunConfig, Process, str], list[str]]
"""`contract.run.command`, or a test's replacement."""
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
"""Has glibc keep up to 128 MiB that a process has freed, with tensors of up to 32 MiB. By default the kernel takes most
of it back and zeroes each page anew for the next tensor: 8 % of the processor time of a small job. As in the image."""
SHARED_MEMORY = Path("/dev/shm")
"""Memory that processes of vLLM and NCCL share, a file system: Docker makes it 64 MB by default."""
_REAPER_SECONDS = 10.0
"""Deadline of a reaper to kill its descendants, seconds."""


class Supervised:
    """One process of a job over all its starts: the name stays, each start has a new uid."""

    def __init__(self, process: Process, logs: Path) -> None:
        self.process = process
        self.log, self.end = ProcessLog(logs / f"{process.name}.log"), logs / f"{process.name}.end"
        self.uid = ""
        self.ready = False
        self.started: float | None = None
        self.ended: Ended | None = None
        self.reaper: subprocess.Popen[bytes] | None = None
        """Starts the process, and ends its descendants when it ends."""
        self.reaper_gone: float | None = None
        """Time at which the reaper's end was first noticed."""
        self._reaper_late: float | None = None
        self._oom_kills = OomKills()
        self._killed_because = ""

    @property
    def address(self) -> str:
        return f"http://{self.process.host}:{self.process.port}"

    @property
    def running(self) -> bool:
        return self.started is not None and self.ended is None

    def read_state(self) -> ProcessState:
        place = self.process
        return ProcessState(place.role, place.index, self.started, self.ready, self.ended, place.rank)

    def start(
        self,
        config: RunConfig,
        config_file: Path,
        token: str,
        make: Command = command,
        *,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Starts or restarts the process of a job with this `token`, with `more` environment variables, which override
        the job's. Raises OSError if the machine cannot start one."""
        argv = make(config, self.process, sys.executable)
        variables = environment(
            config, self.process, config_file=str(config_file), termination_log=str(self.end)
        )
        environ = {**os.environ, **variables, **more, "RLHF_TOKEN": role_token(token, self.process.role)}
        environ |= gpus.variables(config, self.process, gpus.present(environ))
        environ["PYTHONUNBUFFERED"] = "1"
        # As in the image, unless the user says otherwise; with the first a library's fault shows where.
        environ = {"PYTHONFAULTHANDLER": "1", **MALLOC} | environ
        cores = len(os.sched_getaffinity(0))
        environ.setdefault("OMP_NUM_THREADS", str(threads_each(config.spec, self.process.role, cores)))
        self.end.unlink(missing_ok=True)
        self.uid, self.ready, self.ended, self._killed_because = str(uuid.uuid4()), False, None, ""
        self.reaper_gone, self._reaper_late, self._oom_kills = None, None, OomKills()
        with self.log.open(f"{datetime.datetime.now().isoformat(' ', 'seconds')} {shlex.join(argv)}") as log:
            self.reaper = subprocess.Popen(
                [sys.executable, "-I", str(reaper.__file__), str(os.getpid()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
            )
        self.started = time.monotonic()

    def ending(self, now: float) -> bool:
        """True if its reaper has ended and its own end is not recorded yet."""
        if self.reaper is None or self.ended is not None:
            return False
        if self._reaper_late is not None and now > self._reaper_late:
            self.reaper.kill()  # stopped, or in an uninterruptible wait
        if self.reaper.poll() is not None:
            self.reaper_gone = self.reaper_gone or now
        return self.reaper_gone is not None

    def note_end(self, now: float) -> None:
        """Records the process's end, once all its descendants are gone."""
        assert self.reaper is not None
        raw = self.reaper.returncode
        text = self.end.read_text(errors="replace") if self.end.exists() else ""
        code = raw if raw >= 0 else 128 - raw
        words = exit_words(code) + (self._oom_kills.words() if code == 128 + signal.SIGKILL else "")
        how = self._killed_because or (f"lost its supervising process, which {words}" if raw < 0 else words)
        silent = bool(self._killed_because) or code in (0, 128 + signal.SIGKILL)
        telling = cause(text, self.log.tail(), silent=silent)
        reason = f"{how}: {telling}" if telling else how
        if failure_type(reason) == "DiskFull":
            reason += f" ({room((self.log.path.parent, Path(tempfile.gettempdir()), SHARED_MEMORY))})"
        self.ended = Ended(now, code, f"{reason}; see {_short(self.log.path)}")

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self, reason: str = "") -> None:
        """Kills the process and its descendants; `reason`: the reason to report."""
        self._killed_because = reason
        self._reaper_late = self._reaper_late or time.monotonic() + _REAPER_SECONDS
        self._signal(reaper.KILL)

    def _signal(self, number: int) -> None:
        if self.reaper is not None and self.reaper.poll() is None:
            self.reaper.send_signal(number)


def threads_each(spec: Spec, role: Role, cores: int) -> int:
    """Compute threads per process of a role: all cores, divided among the processes that compute at the same time.

    Roles take turns (generate, score, train), so only processes of the same role share cores; if two roles overlap,
    waiting threads sleep (`rlhf_api.contract.run.SHARE_CORES`) and leave the core to the others.
    """
    ranks = spec.trainer.processes_per_replica if role is Role.TRAINER else 1
    return max(1, cores // (len(places(spec, role)) * ranks))


def _short(path: Path) -> str:
    """The path relative to the current directory, if below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def room(folders: Iterable[Path]) -> str:
    """The free space of each file system, the fullest first: `free: 0 GB in /dev/shm, 35 GB in /tmp`."""
    file_systems: dict[int, tuple[int, Path]] = {}
    for folder in folders:
        with suppress(OSError):
            file_systems.setdefault(folder.stat().st_dev, (shutil.disk_usage(folder).free, folder))
    return "free: " + ", ".join(
        f"{free / 1e9:.3g} GB in {folder}" for free, folder in sorted(file_systems.values())
    )


async def end_the_hung(processes: Sequence[Supervised], control: ControlClient) -> None:
    """Probes each role's liveness path every LIVE_SECONDS, while it is awaited, and kills a process that failed
    LIVE_FAILURES times in a row, as a kubelet would; it is restarted like any other that ends. Trainers are not probed:
    a computing rank does not answer."""
    failures: Counter[str] = Counter()
    while True:
        await asyncio.sleep(LIVE_SECONDS)
        probed = [
            (process, process.uid, path)
            for process in processes
            if process.running and process.ready and listens(process.process)
            if (path := process.process.role.row.live)
        ]
        answers = await asyncio.gather(
            *(control.lives(process.address + path) for process, _, path in probed)
        )
        for (process, uid, _), lives in zip(probed, answers, strict=True):
            failures[uid] = 0 if lives else failures[uid] + 1
            if failures[uid] == LIVE_FAILURES and process.running and process.uid == uid:
                process.kill(f"hung: it gave no sign of life for {LIVE_FAILURES * LIVE_SECONDS:g} s")
