"""Worker process of environments: one JSON line a call on stdin, one a reply, in any order. Imports no torch.

`python -m rlhf_trainer.environments.worker MODULE:NAME SETTINGS PARENT` first writes `{"ready": true}` with the tools'
`schemas` and whether the class is `sync`, or `{"invalid": reason}`. A call has an `id`, which its reply repeats, an
`episode` and what to `do`: `reset` with a `row`, `step` with a turn's `text` and its `raw` text, or `end`. A reply has
the result, `failed` (a reason that another try may not have) or `error` (one of this episode); and its `seconds`.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.imports import described

from ..process.imports import import_function
from ..process.worker_pipes import take_pipes
from .adapter import EpisodeOfClass, Unfit, check_class, is_sync, schemas_of

LONGEST_REPLY = 4 << 20
"""Characters of a reply; no model reads as many."""
LONGEST_CALL = 64 << 20
"""Bytes of a call: a row, or the text of a turn."""


class Episodes:
    """The episodes of this process, by their numbers."""

    def __init__(self, kind: type[Any], settings: Mapping[str, Any]) -> None:
        self._kind, self._settings = kind, settings
        self._open = dict[int, EpisodeOfClass]()

    async def answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to a call."""
        try:
            reply = await self._done(call)
        except Unfit as error:
            return {"error": str(error)}
        except (OSError, MemoryError) as error:
            return {"failed": f"{call['do']} raised {described(error)}"}
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # a cancellation by the class's own libraries, too
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return {"error": f"{call['do']} raised {described(error)}"}
        if (size := sum(map(len, _texts(reply)))) > LONGEST_REPLY:
            return {"error": f"{call['do']} returned {size} characters, more than {LONGEST_REPLY}"}
        return reply

    async def _done(self, call: Mapping[str, Any]) -> dict[str, Any]:
        number = call["episode"]
        match call["do"]:
            case "reset":
                self._open[number] = EpisodeOfClass(self._kind, self._settings)
                return vars(await self._open[number].reset(call["row"]))
            case "step":
                return (await self._open[number].step(call["text"], call["raw"]))._asdict()
            case _:
                return {"reward": await self._open.pop(number).end(cut=call["cut"])}


def _texts(value: Any) -> list[str]:
    """All text in a reply."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts(part)]


def main() -> None:
    path, settings, parent = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    if (pipes := take_pipes(parent)) is None:
        return
    calls, replies = pipes
    try:
        kind: Any = import_function(path, path)
        check_class(kind, settings)
        schemas = schemas_of(kind)
    except InvalidJob as error:
        _send({"invalid": error.problems[0].message}, replies)
        return
    except Unfit as error:
        _send({"invalid": f"{path!r} {error}"}, replies)
        return
    _send({"ready": True, "schemas": schemas, "sync": is_sync(kind)}, replies)
    asyncio.run(_serve(Episodes(kind, settings), calls, replies))


async def _serve(episodes: Episodes, calls: TextIO, replies: TextIO) -> None:
    loop, own, running = asyncio.get_running_loop(), os.getpid(), set[asyncio.Task[None]]()
    reader = asyncio.StreamReader(limit=LONGEST_CALL)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), calls)

    async def answer(line: bytes) -> None:
        began, call = time.monotonic(), json.loads(line)
        reply = await episodes.answer(call)
        if os.getpid() != own:  # a child that the environment forked, and that returned as well
            os._exit(0)
        _send({"id": call["id"], "seconds": time.monotonic() - began, **reply}, replies)

    while line := await reader.readline():
        task = asyncio.ensure_future(answer(line))
        running.add(task)
        task.add_done_callback(running.discard)


def _send(reply: Mapping[str, object], replies: TextIO) -> None:
    replies.write(f"{json.dumps(reply, default=str)}\n")
    replies.flush()


if __name__ == "__main__":
    main()
