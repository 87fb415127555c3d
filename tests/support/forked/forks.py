"""Processes that start in a moment: forked from one that has imported everything already."""

import gc
import multiprocessing
import multiprocessing.connection
import os
import runpy
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.ports import free_port

WITH_AN_ENGINE = "deepspeed.runtime.zero.muon.muon_optimizer"
"""What DeepSpeed imports with its first engine: 540 modules in 0.8 s of a core, which each garbage collection visits
where they come after `gc.freeze`."""
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.support.forked.uncollected",
        *(f"rlhf_trainer.roles.{name}" for name in ("trainer", "reward", "reference")),
        WITH_AN_ENGINE,
    ]
)


def fork(
    work: Callable[..., object], *arguments: object, log: Path, out: Path | None = None, **environ: str
) -> BaseProcess:
    """A process that does `work`, a function of a module, with these variables; what it says is added to `log`, and
    its standard output to `out` where that is given."""
    process = _CONTEXT.Process(target=_run, args=(work, arguments, (out or log, log), environ))
    process.start()
    return process


def torchrun(ranks: int) -> list[dict[str, str]]:
    """The environment that torchrun gives each rank of a group on this host."""
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    variables = [{"RANK": rank, "LOCAL_RANK": rank, **world, **where} for rank in range(ranks)]
    return [{name: str(value) for name, value in each.items()} for each in variables]


def run_ranks(ranks: int, module: str, *arguments: str, folder: Path, **environ: str) -> list[str]:
    """A module run as each rank of a group, which all must end well; the standard output of each."""
    log = folder / "ranks.log"
    out = [folder / f"rank-{rank}.out" for rank in range(ranks)]
    gang = [
        fork(_run_module, module, *arguments, log=log, out=file, **environ, **each)
        for file, each in zip(out, torchrun(ranks), strict=True)
    ]
    assert ended(gang, 900, log) == [0] * ranks, log.read_text()[-4000:]
    return [file.read_text() for file in out]


def ended(gang: Sequence[BaseProcess], timeout: float, log: Path) -> list[int]:
    """Their exit codes. As under torchrun: when one rank fails, the others are killed."""
    deadline = time.monotonic() + timeout
    try:
        while any(rank.exitcode is None for rank in gang) and not any(rank.exitcode for rank in gang):
            assert time.monotonic() < deadline, f"no end after {timeout:g} s: {log.read_text()[-3000:]}"
            multiprocessing.connection.wait([r.sentinel for r in gang if r.exitcode is None], 1)
    finally:
        for rank in gang:
            if rank.exitcode is None:
                rank.kill()
                rank.join(10)
    return [rank.exitcode for rank in gang]


def forked(pid: int, parent: int) -> bool:
    """True for a process that has its parent's layout of addresses; one that was spawned has another."""
    return _layout(pid) == _layout(parent)


def _layout(pid: int) -> str:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next(line for line in lines if line.endswith("[vdso]"))


def _run(
    work: Callable[..., object],
    arguments: Sequence[object],
    streams: tuple[Path, Path],
    environ: Mapping[str, str],
) -> None:
    """In the new process."""
    gc.freeze()
    gc.enable()
    os.environ.update(environ)
    for number, file in enumerate(streams, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    import torch

    torch.set_num_threads(1)
    work(*arguments)


def _run_module(module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
