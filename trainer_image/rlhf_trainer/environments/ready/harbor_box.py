"""Place of one episode of a Harbor task, in which its commands, solution and tests run, and leave a reward."""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_api.errors.problem import show
from rlhf_api.host.foreign_files import parse_json

from ...process.numbers import finite_number
from ...process.timeouts import Timeouts
from ...process.usage import out_of_memory_kills
from ..adapter import LARGEST_REWARD
from ..episode_sandbox import SandboxLost
from ..sandboxed import Ran
from .harbor_files import LOGS, SOLUTION, TESTS, Task

SHOWN = 16 << 10
"""Bytes of an output that are read, at most."""
LAST = f"tail -c {SHOWN}"
WALL = 10
"""Longest time of a command, in times its seconds of processor."""
REWARDS = ("reward.json", "reward.txt")
"""Names of the files in which the tests leave the reward, in the order in which they are read."""
_IN_DIRECTORY = 'mkdir -p "$0" 2>/dev/null; cd "$0" 2>/dev/null; exec "$@"'
"""Runs a command in the task's directory, which another may have removed: then it is made again."""
_JUDGMENTS = defaultdict[Path, Timeouts](Timeouts)
"""Of each task of this process, which of its tests have left a reward."""


def script(command: str, reader: str) -> str:
    """A shell's text that pipes a command's outputs to `reader`, and ends what the command leaves in the background,
    which would keep the pipe open."""
    ended = f'trap - TERM; {command} 2>&1; code=$?; kill -TERM -1; exit "$code"'
    return f'trap "" TERM; {{ {ended}; }} | {{ {reader}; }}; exit "${{PIPESTATUS[0]}}"'


class Judged(NamedTuple):
    """Reward of what a sandbox holds, and the end of what the tests printed."""

    reward: float
    output: str


class Box(ABC):
    """Files of one episode, as commands leave them."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abstractmethod
    async def run(self, command: Sequence[str], seconds: int) -> Ran:
        """A command in the task's directory, with so many seconds of processor, or WALL times as many in all."""

    @abstractmethod
    async def remove(self) -> None: ...

    @abstractmethod
    async def _run_of_task(
        self, script_text: str, at: str, folder: Path, seconds: float, variables: Mapping[str, str]
    ) -> Ran:
        """A text of the task's own, with a folder of its own at a path, and an empty `/logs` where the folder is the
        tests'."""

    @abstractmethod
    async def _read_rewards(self) -> dict[str, str]:
        """Texts of those of REWARDS that the tests have left. Raises OSError and ValueError."""

    async def solve(self) -> Ran:
        """Runs the task's own solution."""
        solution, limits = self.task.solution, self.task.settings
        assert solution is not None, "it has one"
        text = script(f"bash {SOLUTION}/solve.sh", LAST)
        seconds, variables = limits.verifier.timeout_sec, limits.solution.env
        return await self._run_of_task(text, SOLUTION, solution, seconds, variables)

    async def judge(self, name: str) -> Judged:
        """Runs the task's tests, which write to folders that no command before could. Where they leave no reward, as
        they take too long or are ended, the files that they judge are to blame, with a reward of 0, as long as others
        leave one (`Timeouts`); else raises RuntimeError."""
        verifier, judgments = self.task.settings.verifier, _JUDGMENTS[self.task.folder]
        text, seconds = script(f"bash {TESTS}/test.sh", LAST), verifier.timeout_sec
        began, kills = time.monotonic(), out_of_memory_kills()
        ran = await self._run_of_task(text, TESTS, self.task.tests, seconds, verifier.env)
        try:
            judged = Judged(_reward(await self._read_rewards(), name), ran.output)
        except SandboxLost:
            raise
        except (OSError, ValueError) as error:
            if out_of_memory_kills() == kills and judgments.is_of_response(began):
                return Judged(0.0, ran.output)
            ended = f"its output ends with {show(ran.output[-300:])}"
            if ran.code is None:
                ended = f"it was ended, as it took longer than {seconds:g} s or its turn may, or too much"
            raise RuntimeError(f"{self.task.folder}/tests/test.sh: {error}; {ended}") from None
        judgments.record_end()
        return judged


def in_task(task: Task, command: Sequence[str]) -> tuple[str, ...]:
    """A command in the task's directory."""
    return ("bash", "-c", _IN_DIRECTORY, task.directory, *command)


def _reward(texts: Mapping[str, str], name: str) -> float:
    """Raises ValueError for what is no finite number: what the tests have run may have left it."""
    for file in REWARDS:
        if file not in texts:
            continue
        text = texts[file].strip()
        number = _named(parse_json(text.encode()), name) if file.endswith(".json") else text
        try:
            return finite_number(float(number), LARGEST_REWARD)
        except (TypeError, ValueError):
            raise ValueError(f"its reward must be a finite number; got {show(number)}") from None
    raise ValueError(f"it wrote neither reward.txt nor reward.json to {LOGS}/verifier")


def _named(rewards: Any, name: str) -> Any:
    if not isinstance(rewards, dict) or not rewards:
        raise ValueError(f"its reward.json must have named numbers; got {show(rewards)}")
    if name not in rewards and len(rewards) > 1:
        raise ValueError(f"its rewards are {', '.join(rewards)}: set settings.reward to one of them")
    return rewards.get(name, next(iter(rewards.values())))
