"""Detects ended processes, and ends processes with all their descendants."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from . import reaper
from .processes import Supervised

REMAIN_SECONDS = 30.0
"""Deadline of processes to end after SIGKILL, seconds; a longer wait is the kernel's, for a disk, a network or a
driver.
"""
_STOP_SECONDS = 5.0


def newly_ended(processes: Sequence[Supervised], strangers: Collection[int] = ()) -> list[Supervised]:
    """Processes that have ended since the last call, with all their descendants.

    Descendants of a killed reaper are killed here: this process is their parent now. Until they are gone, no process
    counts as ended: a restarted one would find ports, GPUs and files in use, or train beside its predecessor.
    """
    now = time.monotonic()
    ending = [process for process in processes if process.ending(now)]
    if ending and _kill_left_behind(processes, strangers):
        return []
    for process in ending:
        process.note_end(now)
    return ending


def remaining(processes: Sequence[Supervised], strangers: Collection[int] = ()) -> str:
    """Error message about processes that should have ended REMAIN_SECONDS ago; empty if there are none."""
    ending = [process for process in processes if process.reaper_gone is not None and process.ended is None]
    if not any(p.reaper_gone and time.monotonic() > p.reaper_gone + REMAIN_SECONDS for p in ending):
        return ""
    names = ", ".join(process.process.name for process in ending)
    pids = ", ".join(map(str, sorted(_left_behind(processes, strangers)))) or "none by now"
    return (
        f"processes of {names} have not ended {REMAIN_SECONDS:.0f} s after SIGKILL (pids: {pids}); the kernel holds "
        "them, for a disk, a network or a driver: see `ps -o pid,stat,wchan,cmd`, then go on with --resume"
    )


def _reapers(processes: Iterable[Supervised]) -> set[int]:
    return {p.reaper.pid for p in processes if p.reaper is not None and p.reaper.returncode is None}


def _left_behind(processes: Iterable[Supervised], strangers: Collection[int]) -> set[int]:
    """Descendants of this process that are below neither a living reaper nor a stranger."""
    return reaper.descendants(os.getpid(), besides={*_reapers(processes), *strangers})


def _kill_left_behind(processes: Iterable[Supervised], strangers: Collection[int]) -> bool:
    """Kills descendants that have lost their reaper; returns whether there were any."""
    left = _left_behind(processes, strangers)
    reaper.kill(left)
    reaper.reap_adopted(besides=_reapers(processes))
    return bool(left)


async def stop_all(
    processes: Sequence[Supervised], impatient: Callable[[], bool], strangers: Collection[int] = ()
) -> None:
    """Ends every process: SIGTERM, and SIGKILL to the rest after a grace period, or once `impatient`.

    Returns when no descendant of this process is left but `strangers` and theirs.
    """
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    while _any_alive(processes, strangers) and time.monotonic() < deadline and not impatient():
        await asyncio.sleep(0.05)
    for process in processes:
        process.kill()
    deadline = time.monotonic() + 2.0
    while _any_alive(processes, strangers) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    reaper.kill_descendants(os.getpid(), besides=strangers)
    newly_ended(processes, strangers)


def _any_alive(processes: Sequence[Supervised], strangers: Collection[int]) -> bool:
    newly_ended(processes, strangers)
    return any(process.running for process in processes)
