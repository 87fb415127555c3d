"""Processes that reward functions and programs start: ended with them, and reaped."""

import asyncio
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
from tests.unit.trainer.scoring.test_reward_program import NONE

from rlhf_api.host.reaper import become_subreaper
from rlhf_trainer.scoring.function_pool import FunctionPool
from rlhf_trainer.scoring.program import Program
from rlhf_trainer.scoring.samples import Failure, Sample

FUNCTION = """
import subprocess, time


def hangs(_prompts, responses, _rows):
    if responses == ["hang"]:
        subprocess.Popen(["sh", "-c", "sleep 3600 & sleep 3600"])
        time.sleep(3600)
    return [1.0 for _ in responses]
"""
WHERE = "spec.reward.functions[0]"


def as_the_role(test: Callable[[], None]) -> None:
    """In a process that adopts orphans as the reward role does."""
    process = multiprocessing.get_context("spawn").Process(target=test)
    process.start()
    process.join()
    assert process.exitcode == 0


def of_a_function() -> None:
    async def scores() -> None:
        pool = FunctionPool(WHERE, "function_that_hangs:hangs", concurrency=1, timeout=5.0)
        become_subreaper()
        assert await pool.score([Sample("", "hang", {})]) == [Failure("the function took longer than 5 s")]
        assert psutil.Process().children(recursive=True) == []
        # A worker that somebody kills while it has no call costs the next one nothing.
        assert await pool.score([Sample("", "", {})]) == [1.0]
        (worker,) = pool._idle
        worker._process.kill()
        await worker._process.wait()
        assert await pool.score([Sample("", "", {})]) == [1.0]
        for worker in pool._idle:
            await worker.end()

    asyncio.run(scores())


def of_a_program() -> None:
    command = ["sh", "-c", "sleep 3600 & setsid sleep 3600"]
    program = Program(WHERE, command, memory_megabytes=512, cpu_seconds=5, concurrency=1, timeout=5.0)
    become_subreaper()
    assert asyncio.run(program.score([Sample("", "", {})])) == [
        Failure("the program ran longer than 5 s, and no other ended in time")
    ]
    assert psutil.Process().children(recursive=True) == []


def test_a_function_that_hangs_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "function_that_hangs.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    as_the_role(of_a_function)


@pytest.mark.skipif(bool(NONE), reason=NONE)
def test_a_program_that_hangs_leaves_no_process() -> None:
    as_the_role(of_a_program)


STARTED = """
import asyncio, sys
from rlhf_trainer.process import process_groups

async def main():
    pipes = dict.fromkeys(("stdin", "stdout"), asyncio.subprocess.PIPE)
    starting = asyncio.ensure_future(process_groups.start("sleep", "3600", **pipes, process_group=0))
    for _ in range(int(sys.argv[2])):
        await asyncio.sleep(0)
    if sys.argv[1] == "cancelled":
        starting.cancel()
        await asyncio.wait([starting])

asyncio.run(main())
"""


def of_a_start(end: str, turns: int) -> None:
    become_subreaper()
    subprocess.run([sys.executable, "-c", STARTED, end, str(turns)], check=True, timeout=60)
    left = psutil.Process().children(recursive=True)
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("end", ["cancelled", "at the end of the loop"])
def test_a_process_that_was_just_started_ends_with_who_waits_for_it(end: str, turns: int) -> None:
    as_the_role(partial(of_a_start, end, turns))
