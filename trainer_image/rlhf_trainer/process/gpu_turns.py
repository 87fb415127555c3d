"""Turns of processes on one GPU: a file lock for each GPU, which the kernel releases when its holder dies.

The trainer's ranks hold those of their GPUs while they compute, and an engine those of its GPUs while it starts. So an
engine that is started again waits for the end of a step's training, and the trainer for the end of that start.
"""

import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob, Problem

FOLDER = "turns"
"""Of a run's work directory."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
INHERITED = "RLHF_GPU_TURNS"
"""Numbers of the open locks that a process took before it started the one that is to release them."""
POLL_SECONDS = 0.05


class GpuTurns:
    """The locks of `gpus` in `folder`, which all processes of a run on this machine share. Raises InvalidJob where its
    disk has none."""

    def __init__(self, folder: Path, gpus: Sequence[str]) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        # In one order, so that no two processes wait for each other.
        names = (gpu.replace("/", "-") for gpu in sorted(gpus))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.locks = tuple(os.open(folder / f"gpu-{name}.lock", flags, 0o600) for name in names)
            for lock in self.locks:
                fcntl.flock(lock, fcntl.LOCK_UN)
        except OSError as error:
            message = f"processes that share a GPU lock files there, which its disk does not allow: {error}"
            raise InvalidJob([Problem("--workdir", f"{message}; use a local disk")]) from error

    def begin(self, seconds: float, waiting: Callable[[], None] = lambda: None) -> None:
        """Takes all of the locks; `waiting` is called now and then, and may raise to give up. Raises TimeoutError after
        `seconds`, with none taken."""
        deadline = time.monotonic() + seconds
        try:
            for lock in self.locks:
                while not _taken(lock):
                    waiting()
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"another process had this GPU's turn for {seconds:.0f} s")
                    time.sleep(POLL_SECONDS)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Releases the locks that are held."""
        release(self.locks)

    def pass_on(self) -> dict[str, str]:
        """Environment for a program that takes this process's place and calls `release_inherited`."""
        for lock in self.locks:
            os.set_inheritable(lock, True)
        return {INHERITED: ",".join(map(str, self.locks))}


def own_gpus(environ: Mapping[str, str]) -> list[str]:
    """The GPUs of this process, as its host has named them; none without."""
    return [name.strip() for name in environ.get(VISIBLE, "").split(",") if name.strip()]


def release_inherited(environ: Mapping[str, str]) -> None:
    """Releases the locks that a process before this one took, in the processes too that have copies of them."""
    release([int(number) for number in environ.get(INHERITED, "").split(",") if number])


def release(locks: Sequence[int]) -> None:
    """Releases open locks."""
    for lock in locks:
        with suppress(OSError):  # the lock file is on a disk that is gone
            fcntl.flock(lock, fcntl.LOCK_UN)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
