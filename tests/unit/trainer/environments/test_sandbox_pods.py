"""Sandboxes in pods: one episode each, limits that its commands meet, and claims by workers without a network."""

import ast
import asyncio
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.support.sandbox_pod import SandboxPod, sandbox_pod
from tests.unit.trainer.environments.test_harbor import make_task
from tests.unit.trainer.environments.test_pool import LONG, NONE, end, pool, reset, say

from rlhf_api.contract import proof, sandbox_server
from rlhf_api.contract.run import EXIT_INVALID
from rlhf_api.field_types import READY_MADE
from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments.adapter import EpisodeOfClass
from rlhf_trainer.environments.episode_sandbox import (
    OPEN,
    SOCKET,
    EpisodeSandbox,
    FolderSandbox,
    OpenSandbox,
    PodSandbox,
    SandboxExhausted,
    SandboxLost,
    open_sandbox,
)
from rlhf_trainer.environments.program.process import AgentProcess
from rlhf_trainer.environments.turn_text import TurnText
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.environments.workers.sandbox_pods import Sandboxes, SandboxPods
from rlhf_trainer.extend import Ran

pytestmark = pytest.mark.skipif(bool(NONE), reason=NONE)
TOKEN = "of sandboxes"


UNFIT = {
    "/no-such-program": "No such file",
    "echo \0": "null byte",
    "\ud800": "surrogates not allowed",
    "x" * (128 << 10): "too long",
}
"""Words of no program, and what is said of them."""


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[SandboxPod]]:
    """Two of them."""
    with ExitStack() as stack:
        yield [stack.enter_context(sandbox_pod(tmp_path / str(i), TOKEN)) for i in range(2)]


@asynccontextmanager
async def claims(
    monkeypatch: pytest.MonkeyPatch,
    pods: list[SandboxPod],
    token: str = TOKEN,
    seconds: float = LONG,
    most: int = 99,
) -> AsyncIterator[SandboxPods]:
    """The socket that workers claim these pods by, of whose ends nobody tells the cause."""
    monkeypatch.setattr("rlhf_trainer.environments.workers.sandbox_pods.CAUSE_SECONDS", 0.0)
    monkeypatch.setenv(SOCKET, "")
    addresses = {str(i): pod.address for i, pod in enumerate(pods)}
    made = SandboxPods(token, seconds, lambda: Sandboxes(addresses), lambda: most)
    await made.start()
    yield made


def test_what_runs_in_the_users_image_needs_no_more_than_python_3_8() -> None:
    for module in (sandbox_server, proof):
        assert module.__file__ is not None
        text = Path(module.__file__).read_text()
        ast.parse(text, feature_version=(3, 8))
        assert "from __future__ import annotations" in text
    assert sandbox_server._EXIT_INVALID == EXIT_INVALID


def test_commands_meet_their_limits_and_the_next_one_runs(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = {
        "cat; echo wrong >&2; exit 3": Ran(3, "given"),
        "kill -TERM $$": Ran(128 + signal.SIGTERM, ""),
        "echo kept > file; sleep 999 & echo started": Ran(0, "started\n"),
        "cat file; ls /proc | grep -c '^[0-9]'": Ran(0, "kept\n4\n"),  # the server, this shell, ls and grep
        "exec >&-; sleep 0.1; exit 4": Ran(4, ""),
        "kill -INT 1; kill -TERM 1; kill -KILL 1; kill -STOP 1; cat /proc/1/environ; echo $? ${RLHF_TOKEN-none}": Ran(
            0, "1 none\n"
        ),
        "cat /proc/self/oom_score_adj; kill -TERM $$": Ran(128 + signal.SIGTERM, "1000\n"),
        "head -c 65537 /dev/zero": None,
        "bomb() { bomb | bomb & }; bomb; sleep 99": None,
        "for i in $(seq 300); do sleep 99 & done": Ran(2, ""),  # by the kernel, which lets it make no more
        "sleep 99": None,
        "echo again": Ran(0, "again\n"),
    }

    async def check() -> None:
        async with claims(monkeypatch, pods):
            sandbox = await open_sandbox()
            for command, expected in cases.items():
                seconds = 0.3 if command.endswith("sleep 99") else LONG
                ran = await sandbox.run(("sh", "-c", command), "given", seconds=seconds)
                assert ran == expected if expected else ran.code is None, command
            for word, reason in UNFIT.items():
                ran = await sandbox.run((word, word))
                assert (ran.code, reason in ran.output) == (127, True), ran.output
            waiting = asyncio.ensure_future(sandbox.run(("sleep", "1")))
            await asyncio.sleep(0)
            for pod in pods:
                probe = await asyncio.to_thread(urllib.request.urlopen, f"{pod.address}/health")
                assert probe.read() == b"ok"
            assert await waiting == Ran(0, "")
            await sandbox.close()
            await asyncio.to_thread(ended_one, pods)
            pods[0].server.terminate()  # as its kubelet does
            assert await asyncio.to_thread(pods[0].process.wait) == 0

    asyncio.run(check())


def ended_one(pods: list[SandboxPod]) -> None:
    """Waits for the end of one: with exit code 0, and the word for the operator."""
    while not (over := [pod for pod in pods if pod.process.poll() is not None]):
        time.sleep(0.01)
    (pod,) = over
    assert pod.process.returncode == 0
    assert pod.log.read_text() == sandbox_server.CLAIMED
    pods.remove(pod)


def test_an_episodes_end_is_its_pods_and_a_worker_without_a_network_has_the_next_one(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with claims(monkeypatch, pods), pool("Boxed") as workers:
            worker = await workers.free()
            for number, name in enumerate(("first", "second")):
                await worker.call(reset(number, text=name), LONG)
                reply = await worker.call(say("cat row.txt; touch more; ls *.txt more", number), LONG)
                assert reply["messages"][0]["content"] == f"0: {name}more\nrow.txt\n"
                await worker.call(end(number), LONG)
                await asyncio.to_thread(ended_one, pods)
            assert not pods, "none has two"

    asyncio.run(check())


def test_an_episode_whose_pod_ends_fails_and_its_next_life_has_another(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with claims(monkeypatch, pods), pool("Boxed") as workers:
            worker = await workers.free()
            await worker.call(reset(text=""), LONG)
            (claimed,) = [pod for pod in pods if pod.log.read_text()]
            stepping = asyncio.ensure_future(worker.call(say("sleep 99"), LONG))
            while not any(each.name() == "sleep" for each in claimed.server.children(recursive=True)):
                await asyncio.sleep(0.01)
            claimed.kill()
            reply = await stepping
            assert "SandboxLost: the sandbox's pod has ended" in reply["failed"]
            await worker.call(end(), LONG)
            await worker.call(reset(1, text=""), LONG)
            assert (await worker.call(say("echo again", 1), LONG))["messages"][0]["content"] == "0: again\n"

    asyncio.run(check())


def test_an_episode_whose_commands_exhaust_its_pod_ends_with_the_rewards_so_far(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host says so a while after its end: the next command is refused, or the turn's only one had no exit code."""

    async def check() -> None:
        async with claims(monkeypatch, pods[:1]) as made, pool("Boxed") as workers:
            monkeypatch.undo()  # there is a cause
            worker = await workers.free()
            await worker.call(reset(text=""), LONG)
            stepping = asyncio.ensure_future(worker.call(say("sleep 99"), LONG))
            while not any(each.name() == "sleep" for each in pods[0].server.children(recursive=True)):
                await asyncio.sleep(0.01)
            pods[0].kill()
            made._pods = lambda: Sandboxes({}, frozenset(["0"]))
            assert (await stepping)["messages"][0]["content"] == "None: "
            reply = await worker.call(say("echo again"), LONG)
            assert (reply["done"], reply["reward"]) == (True, 0.0)

    asyncio.run(check())


def test_a_sandbox_that_was_exhausted_between_commands_says_so_and_takes_no_files(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with claims(monkeypatch, pods[:1]) as made:
            sandbox = await open_sandbox()
            made._pods = lambda: Sandboxes({}, frozenset(["0"]))
            pods[0].kill()
            with pytest.raises(SandboxExhausted, match="used up the memory or the disk"):
                await sandbox.write({"file": "text"})
            with pytest.raises(SandboxExhausted):
                await sandbox.run(("true",))
            assert not sandbox.is_open

    asyncio.run(check())


def test_a_pod_without_memory_for_files_is_exhausted_and_a_folder_of_this_machine_is_not(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rlhf_trainer.environments.episode_sandbox._UNPACK", "import os; os.kill(os.getpid(), 9)"
    )

    async def check() -> None:
        async with claims(monkeypatch, pods[:1]):
            with pytest.raises(SandboxExhausted):
                await (await open_sandbox()).write({"file": "text"})
        folder = FolderSandbox()
        with pytest.raises(OSError, match="cannot be written"):
            await folder.write({"file": "text"})
        await folder.close()

    asyncio.run(check())


def test_a_pod_that_is_anothers_or_not_there_is_no_ones_and_the_wait_ends_with_the_reason(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = list[EpisodeSandbox]()  # which ends with the connection

    async def claim(token: str, seconds: float = LONG) -> None:
        async with claims(monkeypatch, pods, token, seconds):
            claimed.append(await open_sandbox())

    async def check() -> None:
        with pytest.raises(SandboxLost, match="no sandbox's pod was free"):
            await claim("another's", 0.1)
        for _ in pods:
            await claim(TOKEN)
        with pytest.raises(SandboxLost, match="no sandbox's pod was free"):
            await claim(TOKEN, 0.1)

    asyncio.run(check())


def test_a_tool_without_its_sandbox_is_no_error_that_the_policy_reads() -> None:
    class Lost:
        def reset(self) -> None: ...

        def read_file(self) -> str:
            """Reads."""
            raise SandboxLost("gone")

    call = '<tool_call>{"name": "read_file", "arguments": {}}</tool_call>'
    with pytest.raises(SandboxLost, match="gone"):
        asyncio.run(EpisodeOfClass(Lost, {}).step(TurnText(call, call)))


def test_a_tool_that_exhausts_its_sandbox_ends_the_episode_with_the_reward_of_the_class() -> None:
    class Exhausts:
        reward = 0.5

        def reset(self) -> None: ...

        def read_file(self) -> str:
            """Reads."""
            raise SandboxExhausted("used up")

    call = '<tool_call>{"name": "read_file", "arguments": {}}</tool_call>'
    step = asyncio.run(EpisodeOfClass(Exhausts, {}).step(TurnText(call, call)))
    assert (step.done, step.reward) == (True, 0.5)


def test_a_program_in_namespaces_of_its_own_claims_one_too(
    pods: list[SandboxPod], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM)

    async def check() -> None:
        async with claims(monkeypatch, pods):
            section = Environment(program=(sys.executable, str(program)))
            process = await AgentProcess.start(section, {}, {})
            try:
                assert await process.ended() == 1.0
            finally:
                await process.end()
            await asyncio.to_thread(ended_one, pods)

    asyncio.run(check())


PROGRAM = """
import asyncio, json
from rlhf_trainer.extend import open_sandbox

async def play():
    ran = await (await open_sandbox()).run(("sh", "-c", "ls -A /app; echo $PPID"))
    print(json.dumps({"reward": float(ran.output == "1\\n")}))

asyncio.run(play())
"""


def test_a_worker_that_dies_leaves_no_pod_behind(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with claims(monkeypatch, pods), pool("Boxed") as workers:
            worker = await workers.free()
            await worker.call(reset(text=""), LONG)
            os.kill(worker.pid, signal.SIGKILL)
            await asyncio.to_thread(ended_one, pods)

    asyncio.run(check())


def test_a_worker_that_leaves_in_the_midst_of_what_it_says_leaves_no_pod_behind(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = json.dumps({"command": ["sleep", "999"], "seconds": 1e9, "stdin": 0}).encode() + b"\n"

    async def check() -> None:
        async with claims(monkeypatch, pods):
            reader, writer = await asyncio.open_unix_connection(os.environ[SOCKET])
            await reader.readline()
            writer.write(request)
            (claimed,) = [pod for pod in pods if pod.log.read_text()]
            while not claimed.server.children():
                await asyncio.sleep(0.01)
            writer.write(request)
            await writer.drain()
            writer.close()
            await asyncio.to_thread(ended_one, pods)

    asyncio.run(check())


def test_workers_hold_one_pod_for_each_of_their_episodes_at_most(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        async with claims(monkeypatch, pods, most=1):
            sandbox = await open_sandbox()
            waiting = asyncio.ensure_future(open_sandbox())
            assert await sandbox.run(("echo", "mine")) == Ran(0, "mine\n")
            assert [bool(pod.log.read_text()) for pod in pods].count(True) == 1
            await sandbox.close()
            assert await (await waiting).run(("echo", "next")) == Ran(0, "next\n")
        async with claims(monkeypatch, pods, seconds=0.1, most=0):
            with pytest.raises(SandboxLost, match="as many sandboxes as it may, 0, one for each episode"):
                await open_sandbox()

    asyncio.run(check())


def test_who_asks_for_a_pod_after_a_long_silence_waits_as_long_as_anyone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check() -> None:
        async with claims(monkeypatch, []) as made:
            made._changed -= 2 * LONG
            reader, writer = await asyncio.open_unix_connection(os.environ[SOCKET])
            assert json.loads(await reader.readline()) == {"waits": True}
            writer.close()

    asyncio.run(check())


def test_an_address_that_another_pod_has_now_is_claimed_once(
    pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a pod has ended, and the next one has its address before anybody tells of it."""

    async def check() -> None:
        async with claims(monkeypatch, [pods[0], pods[0]], seconds=0.1):
            sandbox = await open_sandbox()
            with pytest.raises(SandboxLost, match="no sandbox's pod was free"):
                await open_sandbox()
            assert await sandbox.run(("echo", "mine")) == Ran(0, "mine\n")

    asyncio.run(check())


def test_an_episode_has_one_sandbox_at_a_time() -> None:
    async def check() -> None:
        of_episode = OpenSandbox()
        OPEN.set(of_episode)
        first = await open_sandbox()
        with pytest.raises(RuntimeError, match="an episode has one sandbox at a time: close"):
            await open_sandbox()
        await first.close()
        second = await open_sandbox()
        await of_episode.close()
        assert not second.is_open

    asyncio.run(check())


def test_workers_open_no_more_connections_than_files_are_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_trainer.environments.workers.sandbox_pods.MOST_CONNECTIONS", 1)

    async def check() -> None:
        async with claims(monkeypatch, []):
            _, writer = await asyncio.open_unix_connection(os.environ[SOCKET])
            with pytest.raises(SandboxLost, match="there are 1 sandboxes"):
                await open_sandbox()
            writer.close()

    asyncio.run(check())


def test_a_hanging_pod_is_given_up(pods: list[SandboxPod], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_trainer.environments.episode_sandbox._HANG_SECONDS", 0.1)

    async def check() -> None:
        async with claims(monkeypatch, pods):
            sandbox = await PodSandbox.claim(os.environ[SOCKET])
            for pod in pods:
                pod.server.suspend()
            with pytest.raises(SandboxLost, match="hangs"):
                await sandbox.run(("true",), seconds=0.1)

    asyncio.run(check())


@pytest.mark.parametrize(
    "reply",
    [
        b'{"code": 0, "output": %d}\n' % (1 << 60),
        b'{"code": 0, "output": -1}\n',
        b'{"code": 0, "output": Infinity}\n',
        b'{"code": "0", "output": 0}\n',
        b"[]\n",
        b"[" * 60_000 + b"\n",
        b"x" * 200_000,
    ],
)
def test_a_pod_that_replies_with_what_no_server_of_ours_sends_is_given_up(
    reply: bytes, tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"claimed": true}\n')
        await reader.readline()
        writer.write(reply)
        await reader.read()  # until it is given up
        writer.close()

    async def check() -> None:
        async with await asyncio.start_unix_server(answer, tmp_path / "claims"):
            sandbox = await PodSandbox.claim(str(tmp_path / "claims"))
            with pytest.raises(SandboxLost, match="has ended, or hangs"):
                await sandbox.run(("true",), seconds=LONG)

    asyncio.run(asyncio.wait_for(check(), LONG))


def test_without_pods_it_is_a_folder_of_this_machine_in_which_files_stay() -> None:
    async def check() -> None:
        async with pool("Boxed") as workers:
            worker = await workers.free()
            await worker.call(reset(text="here"), LONG)
            replies = [
                await worker.call(say(text), LONG) for text in ("cat row.txt > b", "cat /tmp/b; ls /job")
            ]
            assert replies[1]["messages"][0]["content"] == "2: here"
            await worker.call(end(), LONG)
            sandbox = FolderSandbox()
            for word, reason in list(UNFIT.items())[1:]:
                ran = await sandbox.run((word, word))
                assert (ran.code, reason in ran.output) == (127, True), ran.output
            await sandbox.close()

    asyncio.run(check())


HARBOR = "FROM swe:1\nRUN make everything\nENV WORD=hello\nWORKDIR /app\nCOPY --chmod=755 run.sh /app/\n"


def test_a_harbor_task_is_played_in_the_pod_whose_image_has_what_its_dockerfile_makes(
    pods: list[SandboxPod], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(
        tmp_path / "shout",
        dockerfile=HARBOR,
        tests='[ "$(cat answer.txt)" = hello ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n',
        solution="./run.sh > answer.txt\n",
    )
    (task / "environment" / "run.sh").write_text("#!/bin/sh\necho $WORD\n")
    folders = {"folder": str(tmp_path)}
    plant = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; find /tests /solution; pwd"

    async def check() -> None:
        section = Environment(path=READY_MADE["harbor"], settings=folders, workers=1)
        workers = WorkerPool(section)
        async with claims(monkeypatch, pods):
            try:
                await workers.start()
                worker = await workers.free()
                opened = await worker.call(reset(text="", task="shout"), LONG)
                assert opened["text"] == "Shout."
                await asyncio.to_thread(ended_one, pods)  # in which the task's own solution was checked
                reply = await worker.call(bash(plant), LONG)
                assert reply["messages"][0]["content"] == "/tests\n/solution\n/app\n"
                reply = await worker.call(say("Done."), LONG)
                assert (reply["reward"], reply["done"]) == (0.0, True)
            finally:
                await workers.close()

    asyncio.run(check())


def bash(command: str) -> dict[str, object]:
    text = f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call>"
    return {**say(""), "raw": text}
