"""The role of environments: workers in processes of its own, over the wire, whoever dies, stops or lies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.ports import free_port
from tests.support.sandbox_pod import sandbox_pod
from tests.unit.trainer.environments.test_limits import AGENTS
from tests.unit.trainer.environments.test_pool import GAMES, LONG, NONE, SLOW, end, reset, say
from tests.unit.trainer.environments.test_sandboxed import run_at_once
from tests.unit.trainer.environments.test_verifiers import PYTHON, installed
from tests.unit.trainer.rollout.test_turns import (
    DATA,
    ENDS,
    MEMBER,
    SAMPLING,
    TOKENIZER,
    Scripted,
    nothing,
    prompt,
)

from rlhf_api.contract.run import Member, Membership, Process, RunConfig, environment, role_token
from rlhf_api.roles import Role
from rlhf_api.sections.environment import Environment
from rlhf_trainer.data.stop_strings import StopStrings
from rlhf_trainer.dispatch.control import Control
from rlhf_trainer.dispatch.roster import Roster, Unavailable
from rlhf_trainer.environments.adapter import Unfit
from rlhf_trainer.environments.environments import Environments
from rlhf_trainer.environments.rendering import Rendering
from rlhf_trainer.environments.workers import role_worker, role_workers, starting
from rlhf_trainer.environments.workers.interface import WorkerEnded
from rlhf_trainer.environments.workers.pool import WorkerPool
from rlhf_trainer.environments.workers.replies import check_reply
from rlhf_trainer.environments.workers.role_workers import RoleWorkers
from rlhf_trainer.rollout.clients.turns_client import TurnsClient
from rlhf_trainer.rollout.partial_rollout import PartialRollout
from rlhf_trainer.transport.http import HttpClient

TOKEN = "the job's"


def section(name: str, **fields: Any) -> dict[str, Any]:
    return {"path": f"{GAMES}:{name}", "replicas": 1, "workers": 1, **fields}


class Roles:
    """Processes of the role, and the trainer's client of them."""

    def __init__(
        self,
        folder: Path,
        http: HttpClient,
        fields: dict[str, Any],
        sandbox: dict[str, Any] | None = None,
    ) -> None:
        spec = {
            "algorithm": "grpo",
            "steps": 1,
            "model": {"policy": "p"},
            "data": {"train": ["d"]},
            "grpo": {"klCoefficient": 0},
        }
        self._config = RunConfig.model_validate_json(
            json.dumps(
                {
                    "job": "job",
                    "spec": {**spec, "environment": fields, "sandbox": sandbox},
                    "workdir": str(folder),
                }
            )
        )
        assert self._config.spec.environment is not None
        self.section = self._config.spec.environment
        self.processes = list[subprocess.Popen[bytes]]()
        self._folder, self._members = folder, list[Member]()
        self.control = Control(1)
        self.client = RoleWorkers(self.section, TOKEN, Roster(self.control, http))
        (folder / "run.json").write_text(self._config.model_dump_json(by_alias=True))

    def start(self) -> None:
        """One more process of the role."""
        index, port = len(self.processes), free_port()
        process = Process(Role.ENVIRONMENT, index, port, "127.0.0.1", "")
        files = {"config_file": str(self._folder / "run.json"), "termination_log": str(self._folder / "end")}
        variables = environment(self._config, process, **files)
        variables["RLHF_TOKEN"] = role_token(TOKEN, Role.ENVIRONMENT)
        command = [sys.executable, "-P", "-m", "rlhf_trainer.roles.environment"]
        self.processes.append(subprocess.Popen(command, env={**os.environ, **variables}, cwd=Path.cwd()))
        self.add(
            Member(
                role=Role.ENVIRONMENT, name=process.name, uid=str(index), address=f"http://127.0.0.1:{port}"
            )
        )

    def add(self, member: Member) -> None:
        self._members.append(member)
        self.control.learn(Membership(members=tuple(self._members)))

    async def close(self) -> None:
        await self.client.close()
        for process in self.processes:
            process.kill()
            process.wait()


@asynccontextmanager
async def roles(
    folder: Path, name: str, count: int = 1, sandbox: dict[str, Any] | None = None, **fields: Any
) -> AsyncIterator[Roles]:
    with HttpClient(TOKEN) as http:
        made = Roles(folder, http, section(name, **fields), sandbox)
        try:
            for _ in range(count):
                made.start()
            await made.client.start()
            yield made
        finally:
            await made.close()


def client_of(made: Roles, engine: Scripted) -> TurnsClient:
    stops = StopStrings(TOKENIZER, ())
    rendering = Rendering(TOKENIZER, DATA, ENDS, stops, made.client.schemas)
    environments = Environments(made.section, rendering, made.client)
    most = made.section.max_tokens
    return TurnsClient(engine, environments, sampling=SAMPLING, ends=ENDS, stops=stops, most=most)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not condition():
            await asyncio.sleep(0.02)


CALLS = (
    reset(secret=5, seed=5),
    say("3"),
    reset(1, secret=7, seed=7),
    say("9", 1),
    say("5"),
    end(),
    end(1, cut=True),
)
KINDS = {
    "class": {"path": f"{GAMES}:AsyncGuess"},
    "program": {"path": None, "program": [sys.executable, str(AGENTS), "guess"]},
    "verifiers": {
        "path": "verifiers",
        "python": str(PYTHON),  # an interpreter of its own
        "settings": {"taskset": {"id": "verifiers_guess"}},
    },
}


@pytest.mark.parametrize("kind", ["class", "program", pytest.param("verifiers", marks=installed)])
def test_calls_have_the_replies_of_workers_beside_the_trainer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "verifiers":  # which imports a file of the directory
        monkeypatch.chdir(AGENTS.parent)

    async def by_role() -> list[dict[str, Any]]:
        async with roles(tmp_path, "", **KINDS[kind]) as made:
            worker = await made.client.free()
            return [await worker.call(call, LONG) for call in CALLS]

    async def beside() -> list[dict[str, Any]]:
        made = WorkerPool(Environment.model_validate_json(json.dumps(section("", **KINDS[kind]))))
        try:
            await made.start()
            worker = await made.free()
            return [await worker.call(call, LONG) for call in CALLS]
        finally:
            await made.close()

    both = [asyncio.run(play()) for play in (by_role, beside)]
    for reply in (*both[0], *both[1]):
        assert reply.pop("seconds") >= 0.0
    assert both[0] == both[1]


@pytest.mark.skipif(bool(NONE), reason=NONE)
def test_its_episodes_have_the_sandboxes_that_the_trainer_tells_of(tmp_path: Path) -> None:
    async def play() -> None:
        with sandbox_pod(tmp_path / "pod", role_token(TOKEN, Role.SANDBOX)) as pod:
            async with roles(tmp_path, "Boxed", sandbox={}) as made:
                worker = await made.client.free()
                resetting = asyncio.ensure_future(worker.call(reset(text="later"), LONG))
                made.add(Member(role=Role.SANDBOX, name="sandbox-0", uid="s", address=pod.address))
                await resetting
                reply = await worker.call(say("cat row.txt; echo $PPID"), LONG)
                assert reply["messages"][0]["content"] == "0: later1\n"
                stepping = asyncio.ensure_future(worker.call(say("sleep 99"), LONG))
                await until(lambda: len(pod.server.children(recursive=True)) > 1)
                pod.kill()
                made.control.learn(Membership(exhausted=("s",)))
                made.control.learn(Membership())  # at once, as its pod is deleted
                assert (await stepping)["messages"][0]["content"] == "None: "

    asyncio.run(play())


def test_tools_are_those_of_the_class(tmp_path: Path) -> None:
    async def play() -> None:
        async with roles(tmp_path, "Calculator") as made:
            assert [each["function"]["name"] for each in made.client.schemas] == ["add", "fail"]

    asyncio.run(play())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_episodes_of_a_process_that_dies_or_stops_are_played_again_in_another(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a call: the reward and the turns are what they would have been."""
    monkeypatch.setattr(role_worker, "HEARTBEAT_SECONDS", 1.0)
    hold = tmp_path / "hold"
    hold.mkdir()

    async def play() -> PartialRollout:
        async with roles(tmp_path, "Waits", writable=[str(hold)]) as made:
            turns = client_of(made, Scripted(["1", "5"]))
            work = PartialRollout.begin(prompt(secret=5, hold=str(hold)), 1)
            playing = asyncio.ensure_future(turns.ask(MEMBER, work, nothing))
            await until((hold / "begun").exists)
            (first,) = made.processes
            first.send_signal(number)
            (hold / "go").touch()
            made.start()
            async with asyncio.timeout(LONG):
                return await playing

    (response,) = asyncio.run(play()).responses
    assert response.outcome is not None
    assert (response.outcome.problem, response.outcome.reward, response.outcome.turns) == ("", 1.25, 2)


def test_an_episode_that_ends_the_process_each_time_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """As by the memory of its pod: alone at last, it is blamed, and after its retries it has no reward."""

    async def play() -> PartialRollout:
        async with roles(tmp_path, "Waits", retries=1, writable=[str(tmp_path)]) as made:
            turns = client_of(made, Scripted(["1", "5"]))
            work = PartialRollout.begin(prompt(secret=5, hold=str(tmp_path)), 1)
            playing = asyncio.ensure_future(turns.ask(MEMBER, work, nothing))
            while not playing.done():
                await until(lambda: (tmp_path / "begun").exists() or playing.done())
                (tmp_path / "begun").unlink(missing_ok=True)
                made.processes[-1].kill()
                made.start()
            return playing.result()

    (response,) = asyncio.run(play()).responses
    assert response.outcome is not None
    assert response.outcome.reward != response.outcome.reward, "no reward, which is not a reward of zero"
    assert response.outcome.problem.startswith("the connection to environment-")


def test_a_worker_ends_with_its_trainer(tmp_path: Path) -> None:
    async def play() -> None:
        async with roles(tmp_path, "Guess") as made:
            await made.client.free()
            (process,) = map(psutil.Process, (each.pid for each in made.processes))
            assert process.children()
            await made.client.close()
            await until(lambda: not process.children())

    asyncio.run(play())


def test_a_class_that_hangs_is_blamed_by_the_process_that_it_is_in(tmp_path: Path) -> None:
    async def play() -> None:
        async with roles(tmp_path, "Waits", writable=[str(tmp_path)]) as made:
            worker = await made.client.free()
            await worker.call(reset(hold=str(tmp_path)), LONG)
            with pytest.raises(WorkerEnded, match=r"step took longer than 0\.5 s") as ended:
                await worker.call(say("1"), 0.5)
            assert ended.value.blamed
            assert not worker.lives
            assert (await made.client.free()) is not worker

    asyncio.run(play())


@pytest.mark.skipif(bool(NONE), reason=NONE)
def test_a_wait_for_a_place_is_none_of_a_calls_seconds_there(tmp_path: Path) -> None:
    async def play() -> list[object]:
        async with roles(tmp_path, "Sandboxes") as made:
            return await run_at_once(await made.client.free())

    assert asyncio.run(play()) == ["well"] * 4


def test_a_process_that_does_not_answer_is_waited_for_so_long(tmp_path: Path) -> None:
    async def play() -> None:
        with HttpClient(TOKEN) as http:
            made = Roles(tmp_path, http, section("Guess", startupTimeoutSeconds=1))
            try:
                with pytest.raises(Unavailable, match="no environment answered within 1 s"):
                    await made.client.start()
            finally:
                await made.close()

    asyncio.run(play())


def test_a_process_that_takes_no_connection_is_asked_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that needs a worker waits meanwhile."""
    times = list[float]()

    async def refuse(*_arguments: object, **_options: object) -> None:
        times.append(now[0])
        raise TimeoutError

    now = [0.0]
    monkeypatch.setattr(role_workers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(role_workers.RoleWorker, "start", refuse)
    member = Member(role=Role.ENVIRONMENT, name="environment-0", uid="u", address="http://127.0.0.1:1")

    async def play() -> None:
        with HttpClient(TOKEN) as http:
            made = Roles(tmp_path, http, section("Guess"))
            made.control.learn(Membership(members=(member,)))
            async with aiohttp.ClientSession() as made.client._session:
                for second in range(240):
                    now[0] = float(second)
                    assert await made.client._start_somewhere(one_by_one=False) is None

    asyncio.run(play())
    assert times == [0, 10, 30, 70, 150, 230]


def test_a_worker_that_starts_for_minutes_is_waited_for_briefly_where_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "WAIT_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)

    async def play() -> None:
        async with roles(tmp_path, "Slow", path="slow.py:Slow", workers=2) as made:
            first = await made.client.free()
            first.episodes += 1
            (tmp_path / "hold").touch()
            async with asyncio.timeout(LONG):
                assert await asyncio.gather(*(made.client.free() for _ in range(3))) == [first] * 3

    asyncio.run(play())


def test_a_class_that_cannot_be_imported_ends_the_role_with_its_reason(tmp_path: Path) -> None:
    with HttpClient(TOKEN) as http:
        made = Roles(tmp_path, http, section("Missing"))
        made.start()
        try:
            assert made.processes[0].wait(LONG) == 78
        finally:
            asyncio.run(made.close())
    assert "spec.environment.path" in (tmp_path / "end").read_text()


async def _answers(made: Roles, token: str) -> bool:
    """True if a worker is started with this token, taken for the role's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(role_workers, "role_token", lambda _job, _role: token)
        other = RoleWorkers(
            made.section.model_copy(update={"startup_timeout_seconds": 1}), TOKEN, made.client._roster
        )
    try:
        await other.start()
    except Unavailable:
        return False
    finally:
        await other.close()
    return True


def test_the_token_of_environments_is_theirs_alone(tmp_path: Path) -> None:
    """The job's does not follow from it, and their servers do not take the job's for it."""
    assert role_token(TOKEN, Role.TRAINER) == TOKEN != role_token(TOKEN, Role.ENVIRONMENT)

    async def play() -> list[bool]:
        async with roles(tmp_path, "Guess") as made:
            await made.client.close()
            return [await _answers(made, token) for token in (TOKEN, role_token(TOKEN, Role.ENVIRONMENT))]

    assert asyncio.run(play()) == [False, True]


def test_an_image_of_the_role_needs_none_of_the_trainers_large_packages() -> None:
    """As the page has it: pydantic, aiohttp, psutil, and what these import."""
    large = "{name for name in ('torch', 'transformers', 'numpy', 'obstore') if name in sys.modules}"
    code = f"import sys; import rlhf_trainer.roles.environment; print({large})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


HELLO, ENDED = '{"schemas": []}', '{"reward": 1.5, "seconds": 0.1}'


async def _say_to(frames: Sequence[str]) -> dict[str, Any]:
    """The reply to a call, the first of its connection, that a process answers with these frames."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(HELLO)
        await socket.receive()
        for frame in frames:
            await socket.send_str(frame)
        await socket.receive()
        return socket

    app = web.Application()
    app.add_routes([web.get("/v1/worker", serve)])
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        member = Member(
            role=Role.ENVIRONMENT, name="environment-0", uid="u", address=f"http://127.0.0.1:{server.port}"
        )
        section = Environment(path=f"{GAMES}:Guess", replicas=1)
        worker = await role_worker.RoleWorker.start(session, section, member, one_by_one=False)
        async with asyncio.timeout(LONG):
            return await worker.call(end(), 0.1)


def test_replies_to_no_call_are_left_out() -> None:
    """As one of an episode that went on elsewhere; nor is the sign of a call that waits for others a reply."""
    frames = [f'{{"id": {number}, "reply": {ENDED}}}' for number in (7, -1, 0, 0)]
    frames = ['{"id": 0, "waits": true}', *frames]
    assert asyncio.run(_say_to(frames))["reward"] == 1.5


@pytest.mark.parametrize(
    "frames",
    [
        (HELLO,),
        ("[" * 100_000,),
        ('{"id": [0]}',),
        ('{"id": 0, "reply": 5}',),
        ("x" * 2000,),
        (f'{{"id": 7, "reply": {ENDED}}}',),
    ],
    ids=["a second hello", "brackets", "no number", "no reply", "a long frame", "nothing of this call"],
)
def test_a_process_that_sends_no_reply_is_given_up(
    frames: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls end, and are another's to answer."""
    monkeypatch.setattr(role_worker, "LONGEST_LINE", 1000 if len(frames[0]) < 50_000 else 200_000)
    monkeypatch.setattr(role_worker, "REPLY_SECONDS", 0.2)
    with pytest.raises(WorkerEnded, match=r"environment-0 (sent what is no|ended|replied to no)") as ended:
        asyncio.run(_say_to(frames))
    assert ended.value.suspected
    assert ended.value.unreachable


@pytest.mark.parametrize(
    ("do", "reply"),
    [
        ("step", {}),
        ("step", {"messages": [], "reward": float("nan"), "done": True, "seconds": 0.1}),
        ("step", {"messages": ["text"], "reward": 0.0, "done": False, "seconds": 0.1}),
        ("step", {"messages": [], "reward": 0.0, "done": "no", "seconds": 0.1}),
        ("step", {"messages": "text", "reward": 0.0, "done": False, "seconds": 0.1}),
        ("reset", {"messages": None, "text": 1, "added": False, "tools": None, "seconds": 0.1}),
        ("end", {"reward": float("inf"), "seconds": 0.1}),
        ("end", {"reward": 0.0, "seconds": float("nan")}),
    ],
)
def test_what_is_no_reply_is_refused(do: str, reply: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        check_reply(do, reply)
