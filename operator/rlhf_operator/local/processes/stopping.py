"""Detects ended processes, and ends processes with all their descendants."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence

from rlhf_api.host import reaper

from .process import Supervised

REMAIN_SECONDS = 30.0
"""Deadline of processes to end after SIGKILL, seconds; a longer wait is the kernel's, for a disk, a network or a
driver.
"""
_STOP_SECONDS = 5.0


class Tree:
    """A job's processes with all their descendants: everything below this process but what was below it before."""

    def __init__(self, processes: Sequence[Supervised]) -> None:
        self._processes = processes
        self._before = reaper.descendants(os.getpid())

    def newly_ended(self) -> list[Supervised]:
        """Processes that have ended since the last call, with all their descendants.

        Descendants of a killed reaper are killed here: this process is their parent now. Until they are gone, no
        process counts as ended: a restarted one would find ports, GPUs and files in use, or train beside its
        predecessor.
        """
        now = time.monotonic()
        ending = [process for process in self._processes if process.ending(now)]
        if ending and self._kill_left_behind():
            return []
        for process in ending:
            process.note_end(now)
        return ending

    def remaining(self) -> str:
        """Error message about processes that should have ended REMAIN_SECONDS ago; empty if there are none."""
        ending = [p for p in self._processes if p.reaper_gone is not None and p.ended is None]
        if not any(p.reaper_gone and time.monotonic() > p.reaper_gone + REMAIN_SECONDS for p in ending):
            return ""
        names = ", ".join(process.process.name for process in ending)
        pids = ", ".join(map(str, sorted(self._left_behind()))) or "none by now"
        return (
            f"processes of {names} have not ended {REMAIN_SECONDS:.0f} s after SIGKILL (pids: {pids}); the kernel "
            "holds them, for a disk, a network or a driver: see `ps -o pid,stat,wchan,cmd`, then go on with --resume"
        )

    async def stop(self, impatient: Callable[[], bool]) -> None:
        """Ends every process: SIGTERM, and SIGKILL to the rest after a grace period, or once `impatient`. Returns when
        nothing is left."""
        for process in self._processes:
            process.terminate()
        await self._wait(_STOP_SECONDS, impatient)
        for process in self._processes:
            process.kill()
        await self._wait(2.0)
        reaper.kill_descendants(os.getpid(), besides=self._before)
        self.newly_ended()

    async def _wait(self, seconds: float, impatient: Callable[[], bool] = lambda: False) -> None:
        """Waits until all have ended, or `seconds`, or until `impatient`."""
        deadline = time.monotonic() + seconds
        while self._any_running() and time.monotonic() < deadline and not impatient():
            await asyncio.sleep(0.02)

    def _any_running(self) -> bool:
        self.newly_ended()
        return any(process.running for process in self._processes)

    def _reapers(self) -> set[int]:
        return {p.reaper.pid for p in self._processes if p.reaper is not None and p.reaper.returncode is None}

    def _left_behind(self) -> list[int]:
        """Descendants without a living reaper."""
        return reaper.descendants(os.getpid(), besides={*self._reapers(), *self._before})

    def _kill_left_behind(self) -> bool:
        """Kills descendants that have lost their reaper; returns whether there were any."""
        left = self._left_behind()
        reaper.kill(left)
        reaper.reap_adopted(besides=self._reapers())
        return bool(left)
