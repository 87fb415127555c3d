"""Worker processes of environments: both shapes of a class, and whatever a class does to its process."""

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments.turn_text import TurnText
from rlhf_trainer.environments.workers import starting
from rlhf_trainer.environments.workers.interface import WorkerEnded
from rlhf_trainer.environments.workers.pool import Worker, WorkerPool
from rlhf_trainer.process import private_processes

NONE = asyncio.run(private_processes.why_impossible())
GAMES = "tests.unit.trainer.environments.games"
LONG = 60.0
Replies = Callable[..., list[dict[str, Any]]]


@asynccontextmanager
async def pool(name: str, size: int = 1, **settings: Any) -> AsyncIterator[WorkerPool]:
    made = WorkerPool(Environment(path=f"{GAMES}:{name}", settings=settings, workers=size))
    try:
        await made.start()
        yield made
    finally:
        await made.close()


def say(text: str, episode: int = 0) -> dict[str, Any]:
    return {"do": "step", "episode": episode, **TurnText(text, text)._asdict()}


def reset(episode: int = 0, **row: Any) -> dict[str, Any]:
    return {"do": "reset", "episode": episode, "row": row}


def end(episode: int = 0, *, cut: bool = False) -> dict[str, Any]:
    return {"do": "end", "episode": episode, "cut": cut}


@pytest.fixture(scope="module")
def replies() -> Iterator[Replies]:
    """Replies to calls, of one process a class and its settings for all of these tests: each resets its own episodes,
    and does nothing that ends the process."""
    pools = dict[str, WorkerPool]()

    async def play(
        name: str, calls: Sequence[dict[str, Any]], settings: dict[str, Any]
    ) -> list[dict[str, Any]]:
        key = f"{name} {settings}"
        if key not in pools:
            made = WorkerPool(Environment(path=f"{GAMES}:{name}", settings=settings, workers=1))
            await made.start()
            pools[key] = made
        worker = await pools[key].free()
        answers = [await worker.call(call, LONG) for call in calls]
        assert all(answer.pop("seconds") >= 0.0 for answer in answers)
        return answers

    with asyncio.Runner() as runner:
        yield lambda name, *calls, **settings: runner.run(play(name, calls, settings))


def with_worker(name: str, then: Callable[[Worker], Awaitable[None]]) -> None:
    async def play() -> None:
        async with pool(name) as made:
            await then(await made.free())

    asyncio.run(play())


@pytest.mark.parametrize("name", ["Guess", "AsyncGuess"])
def test_a_class_with_step_replies_to_each_turn(replies: Replies, name: str) -> None:
    opening, low, lost, last = replies(name, reset(secret=7), say("3"), say("what?"), say("7"), low=2, high=8)
    assert opening == {"messages": None, "text": "A number from 2 to 8?", "added": False, "tools": None}
    assert low == {"messages": [{"role": "user", "content": "Higher."}], "reward": 0.25, "done": False}
    assert lost["reward"] == 0.0
    assert last == {"messages": "", "reward": 1.0, "done": True}


CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


def test_a_class_of_trls_shape_has_its_tools_called_until_a_turn_calls_none(replies: Replies) -> None:
    opening, sums, answer, _ = replies(
        "Calculator", reset(answer="5", prompt="2+3?", hint="Use tools."), say(CALL + CALL), say("5"), end()
    )
    assert opening == {"messages": None, "text": "Use tools.", "added": True, "tools": None}
    assert sums["messages"] == [{"role": "tool", "name": "add", "content": "5"}] * 2
    assert not sums["done"]
    assert answer == {"messages": "", "reward": 1.0, "done": True}, "the sum of its two calls' rewards"


def test_an_episode_that_is_cut_has_the_reward_so_far(replies: Replies) -> None:
    _, _, cut = replies("Calculator", reset(), say(CALL), end(cut=True))
    assert cut == {"reward": 0.5}
    _, _, native = replies("Guess", reset(), say("1"), end(cut=True))
    assert native == {"reward": 0.0}, "the turns' rewards are known"


def test_a_tool_that_cannot_be_called_replies_with_the_error(replies: Replies) -> None:
    calls = [
        '{"name": "sum", "arguments": {}}',
        '{"name": "add", "arguments": {"a": 2}}',
        '{"name": "fail", "arguments": {}}',
        '{"name": "reset", "arguments": {}}',
        "{",
    ]
    text = "".join(f"<tool_call>{call}</tool_call>" for call in calls)
    _, reply = replies("Calculator", reset(), say(text))
    errors = [json.loads(message["content"])["error"] for message in reply["messages"]]
    assert errors[0] == "there is no tool 'sum'; tools: add, fail"
    assert errors[1] == "add: missing a required argument: 'b'"
    assert errors[2] == "ValueError: no such thing"
    assert errors[3].startswith("there is no tool 'reset'")
    assert errors[4].startswith("the tool call is not valid JSON")


@pytest.mark.parametrize("value", ['"2"', "2.5", "true", "null", "[2]", '{"a": 2}'])
def test_a_tool_is_not_called_with_values_of_other_types(replies: Replies, value: str) -> None:
    call = f'<tool_call>{{"name": "add", "arguments": {{"a": {value}, "b": 3}}}}</tool_call>'
    _, reply, cut = replies("Calculator", reset(), say(call), end(cut=True))
    assert "error" in json.loads(reply["messages"][0]["content"])
    assert "add: a: Input should be a valid integer" in reply["messages"][0]["content"]
    assert cut == {"reward": 0.0}


@pytest.mark.parametrize("call", [r'{"name": "\ud800"}', r'{"name": "say", "arguments": {"text": "\ud800"}}'])
def test_half_a_surrogate_pair_in_a_call_is_no_error_of_the_environment(replies: Replies, call: str) -> None:
    _, reply = replies("Says", reset(), say(f"<tool_call>{call}</tool_call>"))
    (message,) = reply["messages"]
    json.dumps(message, ensure_ascii=False).encode()
    assert "error" in message["content"]


def test_a_class_with_step_may_have_tools_too(replies: Replies) -> None:
    call = '<tool_call>{"name": "open_box", "arguments": {"place": "box"}}</tool_call>'
    _, inside, last = replies("NativeTools", reset(secret=3), say(call), say("3"))
    assert json.loads(inside["messages"][0]["content"]) == {"place": "box", "secret": "3"}
    assert last["done"]


def test_tools_are_described_by_their_types_and_docstrings() -> None:
    async def schemas() -> list[dict[str, Any]]:
        async with pool("Calculator") as made:
            return made.schemas

    add, fail = asyncio.run(schemas())
    assert add["function"]["name"] == "add"
    assert add["function"]["description"] == "Adds two numbers."
    assert add["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "The first."},
            "b": {"type": "integer", "description": "The second."},
        },
        "required": ["a", "b"],
    }
    assert fail["function"]["parameters"]["properties"] == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise", "step raised KeyError: 'grade' ("),
        ("nan", "a reward must be a finite number; got NaN"),
        ("infinite", "a reward must be a finite number; got Infinity"),
        ("masked", "a reward must be a finite number; got a masked entry"),
        ("huge", "a reward must not exceed 1e+30; got 1e+31"),
        ("word", "a reward must be a finite number; got '1'"),
        ("none", "step must return a Step, or (messages, reward, done); got null"),
        ("assistant", "a reply has no message of the assistant"),
        ("object", "the messages of step cannot be JSON: TypeError"),
        ("empty", "step must return messages, at least one; got []"),
        ("surrogate", "the messages of step cannot be JSON: UnicodeEncodeError"),
        ("cancelled", "step raised CancelledError: "),
        ("wordless", "step raised Wordless: and its text raises KeyError ("),
    ],
)
def test_what_is_no_reply_ends_the_episode_with_its_reason(replies: Replies, text: str, reason: str) -> None:
    _, bad, other, good = replies("Misbehaves", reset(), say(text), reset(1), say("5", 1))
    assert bad["error"].startswith(reason)
    assert other["text"]
    assert good["done"], "another episode of the same process goes on"


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        (r'"\ud800"', r"the text of reset is no Unicode; got '\ud800'"),
        (
            r'[{"role": "user", "content": "\ud800"}]',
            "the messages of reset cannot be JSON: UnicodeEncodeError",
        ),
        ('[{"role": "assistant", "content": "I"}]', "the last message of reset must not be the assistant's"),
        ("3", "reset must return text, messages or None; got 3"),
        (f'"{"x" * (5 << 20)}"', "reset returned 5242880 characters, more than 4194304"),
        ("[]", "reset must return text, messages or None; got []"),
    ],
)
def test_what_is_no_opening_ends_the_episode_with_its_reason(
    replies: Replies, opening: str, reason: str
) -> None:
    (bad,) = replies("OpensWith", reset(opening=opening))
    assert bad["error"].startswith(reason)


def test_rewards_and_ends_may_be_numpys(replies: Replies) -> None:
    _, last = replies("Misbehaves", reset(), say("truth"))
    assert (last["reward"], last["done"]) == (0.5, True)


def test_an_error_of_the_machine_may_be_tried_again(replies: Replies) -> None:
    _, bad = replies("Misbehaves", reset(), say("refused"))
    assert set(bad) == {"failed"}


def test_prints_do_not_disturb_the_replies(replies: Replies) -> None:
    assert replies("Misbehaves", reset(), say("print"))[1]["messages"][0]["content"] == "printed"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("die", "was ended by SIGKILL, maybe for lack of memory"),
        ("exit", "ended with exit code 3"),
        ("fork", "ended with exit code 3"),
    ],
)
def test_a_process_that_ends_blames_the_call_under_way(text: str, reason: str) -> None:
    async def play(worker: Worker) -> None:
        await worker.call(reset(), LONG)
        waiting = asyncio.ensure_future(worker.call(say(text), LONG))
        await asyncio.sleep(0)
        other = asyncio.ensure_future(worker.call(reset(1), LONG))
        with pytest.raises(WorkerEnded, match=reason) as error:
            await waiting
        assert error.value.blamed
        with pytest.raises(WorkerEnded) as innocent:
            await other
        assert not innocent.value.blamed, "it had not begun"
        assert not worker.lives

    with_worker("Misbehaves", play)


@pytest.mark.parametrize("text", ["hang", "stop"])
def test_a_process_that_hangs_is_killed(text: str) -> None:
    async def play(worker: Worker) -> None:
        await worker.call(reset(), LONG)
        with pytest.raises(WorkerEnded, match=r"step took longer than 0\.5 s \(spec") as error:
            await worker.call(say(text), 0.5)
        assert error.value.blamed
        assert not psutil.pid_exists(worker.pid)

    with_worker("Misbehaves", play)


def test_a_reply_that_is_none_of_ours_ends_the_process() -> None:
    async def play(worker: Worker) -> None:
        await worker.call(reset(), LONG)
        with pytest.raises(WorkerEnded, match="wrote to the pipe of its replies") as error:
            await worker.call(say("forge"), LONG)
        assert error.value.blamed

    with_worker("Misbehaves", play)


def test_of_several_calls_at_once_the_late_one_is_to_blame() -> None:
    async def play(worker: Worker) -> None:
        await asyncio.gather(worker.call(reset(), LONG), worker.call(reset(1), LONG))
        other = asyncio.ensure_future(worker.call(say("wait", 1), LONG))
        with pytest.raises(WorkerEnded) as error:
            await worker.call(say("wait"), 0.5)
        assert error.value.blamed
        with pytest.raises(WorkerEnded) as innocent:
            await other
        assert not innocent.value.blamed

    with_worker("AsyncMisbehaves", play)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Missing", "cannot be imported"),
        ("function", "is a function, not a class"),
        ("NoReset", "has no method reset"),
        ("OnlyReset", "has neither a method step nor any tools"),
        ("ToolWithoutTypes", "the tool add has no schema; give types .* or begin its name with _"),
    ],
)
def test_a_class_that_is_no_environment_is_refused_at_once(replies: Replies, name: str, reason: str) -> None:
    with pytest.raises(InvalidJob, match=reason) as error:
        replies(name)
    assert error.value.problems[0].where == "spec.environment.path"


def test_settings_that_a_class_does_not_take_are_refused_at_once(replies: Replies) -> None:
    with pytest.raises(InvalidJob, match=r"does not take spec\.environment\.settings: .*'most'"):
        replies("Guess", most=5)


def test_episodes_are_spread_over_processes_that_end_with_the_pool() -> None:
    async def play() -> list[int]:
        async with pool("Guess", size=2) as made:
            first = await made.free()
            first.episodes += 1
            second = await made.free()
            second.episodes += 2
            assert first is not second
            assert await made.free() is first
            assert all(psutil.pid_exists(worker.pid) for worker in (first, second))
            return [first.pid, second.pid]

    assert not any(map(psutil.pid_exists, asyncio.run(play())))


SLOW = """
import pathlib, time
if pathlib.Path("hold").exists():
    time.sleep(3600)
class Slow:
    def reset(self, row): ...
    def step(self, message): return "", 0.0, True
"""


def test_a_process_that_starts_for_minutes_is_waited_for_briefly_where_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "WAIT_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)

    async def play() -> None:
        made = WorkerPool(Environment(path="slow.py:Slow", workers=2))
        try:
            await made.start()
            first = await made.free()
            first.episodes += 1
            (tmp_path / "hold").touch()
            async with asyncio.timeout(LONG):
                assert await asyncio.gather(*(made.free() for _ in range(4))) == [first] * 4
        finally:
            await made.close()

    asyncio.run(play())
    assert not [each for each in psutil.process_iter(["cmdline"]) if "slow.py" in str(each.info["cmdline"])]


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A row with a file of keys and the port of a server; keys are in this process's variables, too."""
    for name in ("RLHF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "a-secret")
    keys = tmp_path / "credentials"
    keys.write_text("a-secret")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    holder = subprocess.Popen(["sleep", "600"])  # what was started with these variables shows them in /proc
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield {"file": str(keys), "port": server.getsockname()[1]}
    finally:
        holder.kill()
        holder.wait()


def observed(row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    async def play() -> dict[str, Any]:
        made = WorkerPool(Environment(path=f"{GAMES}:Observes", workers=1, **fields))
        try:
            await made.start()
            worker = await made.free()
            await worker.call(reset(**row), LONG)
            reply = await worker.call(say("1"), LONG)
            return dict(json.loads(reply["messages"][0]["content"]))
        finally:
            await made.close()

    return asyncio.run(play())


@pytest.mark.skipif(bool(NONE), reason=NONE)
@pytest.mark.parametrize("network", [False, True])
def test_environments_reach_no_keys_and_the_network_only_where_they_may(
    secrets: dict[str, Any], *, network: bool
) -> None:
    assert observed(secrets, network=network) == {"keys": False, "file": "", "network": network}


@pytest.mark.skipif(bool(NONE), reason=NONE)
@pytest.mark.parametrize("network", [False, True])
def test_an_environment_has_a_users_own_keys_only_where_it_has_a_network(
    monkeypatch: pytest.MonkeyPatch, *, network: bool
) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "a-secret")
    assert observed({"file": "", "port": 0}, network=network)["keys"] == network


def test_classes_run_without_namespaces_where_there_are_none_which_is_logged_once(
    secrets: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(private_processes, "PROGRAM", "no-bwrap")
    assert observed(secrets) == {"keys": True, "file": "a-secret", "network": True}
    (record,) = [each for each in caplog.records if "no-bwrap" in each.message]
    assert "environments see this pod's processes, keys and network" in record.message


def test_programs_do_not_run_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_processes, "PROGRAM", "no-bwrap")
    made = WorkerPool(Environment(program=("true",)))
    with pytest.raises(InvalidJob, match=r"spec\.environment\.program: needs a sandbox, .* no-bwrap"):
        asyncio.run(made.start())
