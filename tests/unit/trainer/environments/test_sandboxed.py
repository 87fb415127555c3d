"""Commands in a sandbox: an environment gets their output and their end, or that there is no sandbox."""

import asyncio

import pytest
from tests.unit.trainer.environments.test_pool import GAMES, LONG, NONE, pool, reset, say

from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments import sandboxed
from rlhf_trainer.environments.call_clock import CLOCK, CallClock
from rlhf_trainer.environments.workers.interface import EpisodeWorker
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.extend import Ran, run_in_sandbox
from rlhf_trainer.process import sandbox
from rlhf_trainer.process.usage import Usage

pytestmark = pytest.mark.skipif(bool(NONE), reason=NONE)


def run(*command: str, stdin: str = "", seconds: int = 5) -> Ran:
    return asyncio.run(run_in_sandbox(command, stdin, seconds=seconds))


def test_a_command_has_its_input_and_gives_its_output_and_exit_code() -> None:
    assert run("sh", "-c", "cat; exit 3", stdin="given") == Ran(3, "given")


def test_a_command_whose_end_is_known_after_that_of_its_output_has_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel closes its output first, on a busy machine by much."""
    observations = 0

    async def has_ended(box: sandbox.Sandbox, _seconds: float) -> bool:
        nonlocal observations
        observations += 1
        if observations > 1:
            return await HAS_ENDED(box, 60)
        assert box.output is not None
        while not box.output.at_eof():
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # who reads it has it all
        return False

    monkeypatch.setattr(sandbox.Sandbox, "has_ended", has_ended)
    assert run("sh", "-c", "echo given; exit 3") == Ran(3, "given\n")


HAS_ENDED = sandbox.Sandbox.has_ended


@pytest.mark.parametrize(
    "script",
    [
        "head -c 100000 /dev/zero",
        "i=0; while [ $i -lt 99 ]; do sleep 99 & i=$((i + 1)); done; wait",
        "sleep 99",
    ],
    ids=["output", "processes", "time"],
)
def test_a_command_that_takes_too_much_has_no_exit_code(script: str) -> None:
    assert run("sh", "-c", script, seconds=1) in (Ran(None, ""), Ran(2, ""))


HOLD = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); held = b'x' * (100 << 20); time.sleep(3)"
"""Of a process that shows nobody what it shares."""


def test_processes_of_a_command_have_no_more_memory_together_than_one_may_have() -> None:
    script = 'for i in 1 2 3; do python3 -c "$0" & done; wait; exit 3'
    ran = asyncio.run(run_in_sandbox(("sh", "-c", script, HOLD), seconds=5, megabytes=256))
    assert ran == Ran(None, "")


def test_a_command_that_has_no_cpu_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed, "usage", lambda _: Usage(waited=99.0))

    async def play() -> None:
        CLOCK.set(CallClock(2.0, lambda _: None))
        await run_in_sandbox(("sleep", "99"))

    with pytest.raises(TimeoutError, match=r"a command has waited for a CPU for most of \d s"):
        asyncio.run(play())


def test_where_no_sandbox_can_be_made_that_is_no_end_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SYSTEM", ())
    with pytest.raises(OSError, match="the sandbox ended with exit code 1: bwrap"):
        run("true")


def test_an_environment_in_its_own_namespaces_has_sandboxes_and_loads_no_torch() -> None:
    code = (
        "import asyncio, sys, threading\n"
        "from rlhf_trainer.extend import run_in_sandbox\n"
        "ran = []\n"
        "work = lambda: ran.append(asyncio.run(run_in_sandbox(('echo', 'well'))))\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start()\n"
        "thread.join()\n"
        "result = ran[0].output.strip() + ' ' + str('torch' in sys.modules)"
    )

    async def play() -> str:
        made = WorkerPool(Environment(path=f"{GAMES}:Runs", workers=1))
        try:
            await made.start()
            return str((await (await made.free()).call(reset(code=code), LONG))["text"])
        finally:
            await made.close()

    assert asyncio.run(play()) == "well False"


async def run_at_once(worker: EpisodeWorker) -> list[object]:
    """Replies to commands of four episodes that have one place, each of two of the six seconds that its call has."""
    await asyncio.gather(*(worker.call(reset(each), LONG) for each in range(4)))
    replies = await asyncio.gather(*(worker.call(say("sleep 2; echo well", each), 6.0) for each in range(4)))
    assert max(reply["seconds"] for reply in replies) < 6.0
    return [reply["messages"][0]["content"] for reply in replies]


def test_a_wait_for_a_place_is_none_of_a_calls_seconds() -> None:
    async def play() -> list[object]:
        async with pool("Sandboxes") as made:
            return await run_at_once(await made.free())

    assert asyncio.run(play()) == ["well"] * 4


def test_a_command_is_ended_before_the_call_that_it_is_of() -> None:
    """A call that is too late ends its process, and all episodes in that."""

    async def play() -> object:
        async with pool("Sandboxes") as made:
            worker = await made.free()
            await worker.call(reset(), LONG)
            return (await worker.call(say("sleep 99"), 5.0))["messages"][0]["content"]

    assert asyncio.run(play()) == "ended"
