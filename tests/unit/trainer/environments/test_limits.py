"""Limits of environments: an episode that takes more ends itself alone, with the reason and without a reward."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trainer.environments.test_pool import GAMES, LONG, NONE, pool, reset, say

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments.workers.interface import WorkerEnded
from rlhf_trainer.environments.workers.pool import WorkerPool

pytestmark = pytest.mark.skipif(bool(NONE), reason=NONE)
AGENTS = Path(__file__).with_name("agents.py")
MEGABYTES = 256
FILL = "while True: open({!r}, 'ab').write(bytes(1 << 20))"
FORKS = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(3600)
    except OSError:
        time.sleep(3600)
"""
TOGETHER = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = b"x" * (100 << 20)
        time.sleep(3600)
time.sleep(3600)
"""
SPENT = {
    "forks": (FORKS, r"has as many processes and threads as it may \(512\)|holds more than 256 MiB"),
    "memory": ("held = bytearray(1 << 30)", "MemoryError"),
    "memory of several": (TOGETHER, r"holds more than 256 MiB of memory \(memoryMegabytes\)"),
    "/tmp": (FILL.format("/tmp/large"), "No space left on device"),
    "/dev/shm": (FILL.format("/dev/shm/large"), "No space left on device"),
}
DENIED = {
    "memory files": ("import os; os.memfd_create('m')", "Function not implemented"),
    "the disk": (FILL.format("/var/large"), "Read-only file system"),
}


@pytest.mark.parametrize("name", SPENT)
def test_a_class_that_takes_too_much_ends_its_process_and_is_to_blame(name: str) -> None:
    code, reason = SPENT[name]

    async def play() -> None:
        made = WorkerPool(Environment(path=f"{GAMES}:Runs", workers=1, memoryMegabytes=MEGABYTES))
        try:
            await made.start()
            worker = await made.free()
            await worker.call(reset(), LONG)
            with pytest.raises(WorkerEnded, match=reason) as error:
                await worker.call(say(code), LONG)
            assert error.value.blamed
            assert not worker.lives
            other = await made.free()
            assert (await other.call(reset(code="result = 'well'"), LONG))["text"] == "well"
        finally:
            await made.close()

    asyncio.run(play())


def test_what_is_denied_to_a_class_leaves_its_process_to_the_others() -> None:
    async def play() -> None:
        async with pool("Runs") as made:
            worker = await made.free()
            await worker.call(reset(), LONG)
            for code, reason in DENIED.values():
                assert reason in (await worker.call(say(code), LONG))["failed"]
            assert worker.lives

    asyncio.run(play())


def test_programs_that_take_too_much_end_themselves_alone() -> None:
    """All at once, in one worker, with one that takes nothing."""
    program = sys.executable, str(AGENTS), "runs"
    codes = [code for code, _ in (*SPENT.values(), *DENIED.values())]

    async def play() -> list[dict[str, Any]]:
        made = WorkerPool(Environment(program=program, workers=1, memoryMegabytes=MEGABYTES))
        try:
            await made.start()
            worker = await made.free()
            rows = [*codes, "result = 'well'"]
            calls = [worker.call(reset(number, code=code), LONG) for number, code in enumerate(rows)]
            return await asyncio.gather(*calls)
        finally:
            await made.close()

    *spent, well = asyncio.run(play())
    for reply, (_, reason) in zip(spent, (*SPENT.values(), *DENIED.values()), strict=True):
        assert re.search(reason, reply["error"]), reply
    assert well["messages"][0]["content"] == "well"


def test_a_folder_to_write_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    made = WorkerPool(Environment(path=f"{GAMES}:Runs", writable=(str(tmp_path / "none"),)))
    with pytest.raises(InvalidJob, match=r"spec\.environment\.writable: must be folders that are there"):
        asyncio.run(made.start())


def test_environments_write_where_they_may(tmp_path: Path) -> None:
    async def play() -> None:
        made = WorkerPool(Environment(path=f"{GAMES}:Runs", workers=1, writable=(str(tmp_path),)))
        try:
            await made.start()
            code = f"result = open({str(tmp_path / 'mine')!r}, 'w').write('mine')"
            reply = await (await made.free()).call(reset(code=code), LONG)
            assert reply["text"] == "4"
        finally:
            await made.close()

    asyncio.run(play())
    assert (tmp_path / "mine").read_text() == "mine"
