"""The process of an agent's program: its row on stdin, the tails of what it writes, and its end with all it starts."""

import asyncio
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Self

from rlhf_api.host.tasks import end_all
from rlhf_api.sections.environment import Environment

from ...process import private_processes, process_groups
from ...process.limits import Limits
from ...process.syscall_filter import filter_pipe
from ..adapter import Unfit, checked_reward
from ..confinement import PROCESSES, excess_of, privacy_of
from .conversation import Conversation
from .server import Access

_TAIL = 64 << 10
"""Bytes of each of a program's outputs that are read, its last ones."""
_QUOTED = 500
"""Characters of its errors that a reason quotes."""
_WATCH_SECONDS = 0.2


OVER = "the episode is over: it has as many turns or tokens as spec.environment allows; print the reward and exit"


class Programs:
    """Processes of the section's command."""

    def __init__(self, section: Environment) -> None:
        """Raises Unfit for a command that is none."""
        assert section.program is not None, "it has no class"
        check_program(section.program)
        self._section = section

    def serving(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def start(self, row: Mapping[str, Any], access: Access) -> "AgentProcess":
        """Raises OSError."""
        variables = {"OPENAI_BASE_URL": access.url, "OPENAI_API_KEY": access.key}
        return await AgentProcess.start(self._section, row, variables)


def check_program(command: Sequence[str]) -> None:
    """Raises Unfit for a command that is none."""
    if shutil.which(command[0]) is None:
        raise Unfit(f"cannot be run: {command[0]!r} is not a program here")


class AgentProcess:
    """A program in namespaces of its own, within those of this process, whose network it has. `end` has to be awaited;
    it ends all that the program has started, as the end of this process does."""

    def __init__(self, process: asyncio.subprocess.Process, section: Environment) -> None:
        self._process, self._section, self._excess = process, section, ""
        outputs = (process.stdout, process.stderr)
        self._outputs = [asyncio.ensure_future(_tail(each)) for each in outputs if each is not None]
        self._watching = asyncio.ensure_future(self._watch())

    @classmethod
    async def start(cls, section: Environment, row: Mapping[str, Any], variables: Mapping[str, str]) -> Self:
        """Raises OSError."""
        assert section.program is not None, "it has no class"
        privacy = privacy_of(section, network=True, own_processes=True)
        limits = Limits(data=section.memory_megabytes, processes=PROCESSES)
        with filter_pipe() as rules:
            process = await process_groups.start(
                *(*privacy.command(rules), *limits.command(), *section.program),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                pass_fds=(rules,),
                env={**os.environ, **variables},
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps(dict(row), default=str).encode())
        process.stdin.close()
        return cls(process, section)

    async def ended(self) -> float:
        """Waits for the program's end; its reward. Raises Unfit for an end without one."""
        output, errors = await asyncio.gather(*self._outputs)
        code = await self._process.wait()
        if self._excess:
            raise Unfit(f"the program {self._excess}")
        return reward_of(code, output, errors)

    def cut(self, conversation: Conversation) -> None:
        """Its request is refused."""
        conversation.end(OVER)

    async def end(self) -> None:
        """Ends the program with all that it has started."""
        await process_groups.end(self._process)
        await end_all([*self._outputs, self._watching])

    async def _watch(self) -> None:
        """Ends the program where it and what it has started take too much."""
        first = 0
        while self._process.returncode is None and not self._excess:
            await asyncio.sleep(_WATCH_SECONDS)
            first = first or private_processes.first_inside(self._process.pid)
            self._excess = excess_of(self._section, first) if first else ""
        if self._excess:
            await process_groups.end(self._process)


def reward_of(code: int, output: str, errors: str) -> float:
    """The reward in the last line of a program's output. Raises Unfit for none, and for an exit code that is not 0."""
    tail = f": {errors.strip()[-_QUOTED:]}" if errors.strip() else ""
    if code != 0:
        raise Unfit(f"the program {private_processes.how_ended(code)}{tail}")
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
