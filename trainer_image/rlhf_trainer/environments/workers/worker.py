"""Worker process of environments: one JSON line a call on stdin, one a reply, in any order. Imports no torch.

`python -m rlhf_trainer.environments.workers.worker KIND SECTION PARENT`, with `class` or `agents`, as what it runs asks
the policy for its turns or not, and `spec.environment` as JSON, first writes
`{"ready": true}` with the tools' `schemas` and whether calls are to be one by one (`sync`), or `{"invalid": reason}`.
A call has an `id`, which its reply repeats, an `episode` and what to `do`: `reset` with a `row`, `step` with the fields
of a `TurnText`, or `end`. A reply has the result, `failed` (a reason that another try may not have) or `error` (one of
this episode); its `seconds`; beside `failed`, whether it is a `limit` of this process, which then is to end; and of a
`step`, whether its messages are `cut` off, which no episode has room for. A call has its `seconds` too, to which
`{"id", "waited"}` adds while it waits for commands of others.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.imports import described

from ...process.imports import import_function
from ...process.limits import is_limit, limit_data
from ...process.worker_pipes import take_pipes
from ..adapter import EpisodeOfClass, Opening, Unfit, check_class, is_sync, schemas_of
from ..call_clock import CLOCK, CallClock
from ..episode_sandbox import OPEN, OpenSandbox
from ..step import AgentStep, Step
from ..turn_text import TurnText

if TYPE_CHECKING:
    from ..program.agent import Agents

LONGEST_REPLY = 4 << 20
"""Characters of a reply; no model reads as many."""
LONGEST_CALL = 64 << 20
"""Bytes of a call: a row, or the text of a turn."""


class Episode(Protocol):
    """`reset` once, `step` for each turn, `end` at last; `cut`: a limit ended it. Each raises Unfit."""

    async def reset(self, row: Mapping[str, Any]) -> Opening: ...
    async def step(self, turn: TurnText) -> Step | AgentStep: ...
    async def end(self, *, cut: bool) -> float: ...


class Episodes:
    """The episodes of this process, by their numbers; `make` makes one."""

    def __init__(self, make: Callable[[], Episode]) -> None:
        self._make, self._open = make, dict[int, Episode]()
        self._sandboxes = defaultdict[int, OpenSandbox](OpenSandbox)

    async def answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a call."""
        try:
            reply = await self._done(call)
        except Unfit as error:
            return {"error": str(error)}
        except (OSError, MemoryError) as error:
            return {"failed": f"{call['do']} raised {described(error)}", "limit": is_limit(error)}
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # a cancellation by the class's own libraries, too
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return {"error": f"{call['do']} raised {described(error)}"}
        if (size := sum(map(len, _texts(reply)))) > LONGEST_REPLY:
            if call["do"] == "step":
                return {**reply, "messages": [], "tools": None, "cut": True}
            return {"error": f"{call['do']} returned {size} characters, more than {LONGEST_REPLY}"}
        return reply

    async def _done(self, call: Mapping[str, Any]) -> dict[str, Any]:
        number = call["episode"]
        OPEN.set(self._sandboxes[number])
        match call["do"]:
            case "reset":
                self._open[number] = self._make()
                return vars(await self._open[number].reset(call["row"]))
            case "step":
                turn = TurnText(**{name: call[name] for name in TurnText._fields})
                return (await self._open[number].step(turn))._asdict()
            case _:
                try:
                    return {"reward": await self._open.pop(number).end(cut=call["cut"])}
                finally:
                    await self._sandboxes.pop(number).close()


def _texts(value: Any) -> list[str]:
    """All text in a reply."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts(part)]


def main() -> None:
    kind, text, parent = sys.argv[1:]
    if (pipes := take_pipes(int(parent))) is None:
        return
    calls, replies = pipes
    try:
        play = _of_agents(text) if kind == "agents" else _of_class(json.loads(text))
    except InvalidJob as error:
        _send({"invalid": error.problems[0].message}, replies)
        return
    except Unfit as error:
        section = json.loads(text)
        named = section["path"] or " ".join(section["program"] or ())
        _send({"invalid": f"{named!r} {error}"}, replies)
        return
    asyncio.run(play(calls, replies))


def _of_class(section: Mapping[str, Any]) -> Callable[[TextIO, TextIO], Coroutine[Any, Any, None]]:
    """Without the model of the section, most of a start: of these processes there may be one for each episode."""
    path, settings = str(section["path"]), section["settings"]
    kind: Any = import_function(path, path)
    check_class(kind, settings)
    schemas = schemas_of(kind)
    limit_data(section["memoryMegabytes"] << 20)

    async def play(calls: TextIO, replies: TextIO) -> None:
        _send({"ready": True, "schemas": schemas, "sync": is_sync(kind)}, replies)
        await _serve(Episodes(lambda: EpisodeOfClass(kind, settings)), calls, replies)

    return play


def _of_agents(text: str) -> Callable[[TextIO, TextIO], Coroutine[Any, Any, None]]:
    from rlhf_api.sections.environment import Environment

    from ..program.episode import EpisodeOfAgent
    from ..program.process import Programs
    from ..program.server import CompletionsServer  # aiohttp, which a class does without

    section = Environment.model_validate_json(text)
    agents: Agents
    if section.program is not None:
        agents = Programs(section)
    else:
        path = str(section.path)
        agents = import_function(path, path)(**section.settings)
        limit_data(section.memory_megabytes << 20)

    async def play(calls: TextIO, replies: TextIO) -> None:
        async with CompletionsServer() as server, agents.serving():
            _send({"ready": True, "schemas": [], "sync": False}, replies)
            seconds = section.turn_seconds
            await _serve(Episodes(lambda: EpisodeOfAgent(agents, server, seconds)), calls, replies)

    return play


async def _serve(episodes: Episodes, calls: TextIO, replies: TextIO) -> None:
    loop, own, running = asyncio.get_running_loop(), os.getpid(), set[asyncio.Task[None]]()
    reader = asyncio.StreamReader(limit=LONGEST_CALL)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), calls)

    async def answer(line: bytes) -> None:
        call = json.loads(line)
        number = call["id"]
        clock = CallClock(call["seconds"], lambda waited: _send({"id": number, "waited": waited}, replies))
        CLOCK.set(clock)
        reply = await episodes.answer(call)
        if os.getpid() != own:  # a child that the environment forked, and that returned as well
            os._exit(0)
        _send({"id": number, "seconds": clock.spent, **reply}, replies)

    while line := await reader.readline():
        task = asyncio.ensure_future(answer(line))
        running.add(task)
        task.add_done_callback(running.discard)


def _send(reply: Mapping[str, object], replies: TextIO) -> None:
    replies.write(f"{json.dumps(reply, default=str)}\n")
    replies.flush()


if __name__ == "__main__":
    main()
