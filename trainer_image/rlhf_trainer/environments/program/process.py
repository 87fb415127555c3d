"""The process of an agent's program: its row on stdin, the tails of what it writes, and its end with all it starts."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from rlhf_api.host import reaper

from ...process import process_groups
from ..adapter import Unfit, checked_reward

_TAIL = 64 << 10
"""Bytes of each of a program's outputs that are read, its last ones."""
_QUOTED = 500
"""Characters of its errors that a reason quotes."""
_END_SECONDS = 5.0


def check_program(command: Sequence[str]) -> None:
    """Raises Unfit for a command that is none."""
    if shutil.which(command[0]) is None:
        raise Unfit(f"cannot be run: {command[0]!r} is not a program here")


class AgentProcess:
    """`end` has to be awaited. A reaper of its own ends what the program leaves, and all of it when this process
    dies."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        outputs = (process.stdout, process.stderr)
        self._outputs = [asyncio.ensure_future(_tail(each)) for each in outputs if each is not None]

    @classmethod
    async def start(
        cls, command: Sequence[str], row: Mapping[str, Any], variables: Mapping[str, str]
    ) -> Self:
        """Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", reaper.__file__, str(os.getpid()), *command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(dict(row), default=str).encode())
        process.stdin.close()
        return cls(process)

    async def ended(self) -> float:
        """Waits for the program's end; its reward. Raises Unfit for an end without one."""
        output, errors = await asyncio.gather(*self._outputs)
        return reward_of(await self._process.wait(), output, errors)

    async def end(self) -> None:
        """Ends the program with all that it has started."""
        with suppress(ProcessLookupError):
            if self._process.returncode is None:
                self._process.send_signal(reaper.KILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        await process_groups.end(self._process)
        for output in self._outputs:
            output.cancel()
        await asyncio.gather(*self._outputs, return_exceptions=True)


def reward_of(code: int, output: str, errors: str) -> float:
    """The reward in the last line of a program's output. Raises Unfit for none, and for an exit code that is not 0."""
    tail = f": {errors.strip()[-_QUOTED:]}" if errors.strip() else ""
    if code != 0:
        raise Unfit(f"the program {process_groups.how_ended(code)}{tail}")
    lines = output.strip().splitlines() or [""]
    try:
        value = json.loads(lines[-1])["reward"]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        message = 'the last line of the program\'s standard output must be {"reward": a number}'
        raise Unfit(f"{message}; got {lines[-1][-_QUOTED:]!r}{tail}") from None
    if isinstance(value, bool):
        value = float(value)
    return checked_reward(value)


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of a stream, as text."""
    read = b""
    while piece := await stream.read(_TAIL):
        read = (read + piece)[-_TAIL:]
    return read.decode(errors="replace")
