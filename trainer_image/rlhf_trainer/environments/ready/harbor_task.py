"""Plays one Harbor task in an episode: the policy runs commands in a sandbox that keeps its files, and the task's own
tests judge what it leaves."""

import asyncio
import os
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from rlhf_api.errors.problem import show
from rlhf_api.host.job_files import FOLDER

from ..episode_sandbox import SOCKET
from ..sandboxed import waiting_for_commands
from .harbor_box import SHOWN, Box, script
from .harbor_files import Task, read_task, tasks_in
from .harbor_folder import FolderBox
from .harbor_pod import PodBox
from .row_seed import seed_of

_CUT = "(the rest is left out)"
_RUN = script('bash -c "$1"', f"head -c {SHOWN}; [ $(head -c 1 | wc -c) = 0 ] || printf '\\n{_CUT}'")
_LONGEST = (128 << 10) - 1
"""Bytes of a command, as Linux passes it to a process."""
_CHECKS = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Path, "asyncio.Task[None]"]]()
"""One for each task of a process."""


class HarborTask:
    """The row's column `task` names a folder of `folder`, or its `seed` chooses one. The instruction is added to the
    prompt. `bash` is the only tool; a turn that calls none, or a limit, ends the episode, and then `tests/test.sh`
    tells its reward. Before the first episode of a task in each process its own solution is judged: with a reward of 0
    the task is refused, as it needs what is not here."""

    def __init__(self, *, folder: str, check: bool = True, seconds: int = 10, reward: str = "reward") -> None:
        """`folder`: of tasks; `check`: judge the tasks' own solutions first; `seconds`: of processor that a command
        may take; `reward`: its name where the tests give several."""
        if type(seconds) is not int or seconds < 1:
            raise ValueError(f"settings.seconds must be a whole number from 1; got {show(seconds)}")
        for name, value, kind in (("folder", folder, str), ("reward", reward, str), ("check", check, bool)):
            if not isinstance(value, kind):
                what = "text" if kind is str else "true or false"
                raise ValueError(f"settings.{name} must be {what}; got {show(value)}")
        self._folder, self._check, self._seconds, self._name = _find(folder), check, seconds, reward
        self._box: Box | None = None
        self._is_closed = False

    async def reset(self, **row: Any) -> str:
        names = tasks_in(self._folder)
        name = row["task"] if "task" in row else names[seed_of(row) % len(names)]
        if name not in names:
            raise ValueError(f"the column task must name a folder of {self._folder}; got {show(name)}")
        task = read_task(self._folder / name)
        if self._check:
            await self._checked(task)
        self._box = await _open_box(task)
        if self._is_closed:
            await self.close()
        return task.instruction

    async def _checked(self, task: Task) -> None:
        """Once, unless this machine had no sandbox to do it."""
        checks = _CHECKS.setdefault(asyncio.get_running_loop(), {})
        if (check := checks.get(task.folder)) is None:
            check = checks[task.folder] = asyncio.create_task(_check(task, self._name))
        try:
            async with waiting_for_commands():
                await asyncio.shield(check)
        except OSError:
            if checks.get(task.folder) is check:
                del checks[task.folder]
            raise

    async def bash(self, command: str) -> str:
        """Runs a command in a shell. Files that it leaves stay for the next one; processes and variables do not.

        Args:
            command: The command.
        """
        assert self._box is not None, "it was reset"
        if "\0" in command or len(command.encode(errors="replace")) > _LONGEST:
            return (
                f"A command has at most {_LONGEST} bytes, and no NUL; write a longer text to files in parts."
            )
        ran = await self._box.run(("bash", "-c", _RUN, "bash", command), self._seconds)
        if ran.code is None:
            return "The command was ended: it took too long, or too much."
        return ran.output if ran.code == 0 else f"{ran.output}\n(exit code {ran.code})"

    async def get_reward(self) -> float:
        assert self._box is not None, "it was reset"
        return (await self._box.judge(self._name)).reward

    async def close(self) -> None:
        self._is_closed = True
        if self._box is not None:
            await self._box.remove()


async def _open_box(task: Task) -> Box:
    """In a pod, where the job has sandboxes."""
    return await PodBox.open(task) if SOCKET in os.environ else await asyncio.to_thread(FolderBox, task)


async def _check(task: Task, name: str) -> None:
    """Raises RuntimeError for a task whose own solution has no reward here."""
    left_out = "; ".join(task.left_out)
    if task.solution is None:
        if left_out:
            message = f"{task.folder} has no solution to check it by, and its Dockerfile has {show(left_out)}"
            raise RuntimeError(f"{message}; with `check: false` it is played as it is")
        return
    box = await _open_box(task)
    try:
        solved = await box.solve()
        judged = await box.judge(name)
    finally:
        await box.remove()
    if judged.reward <= 0:
        missing = f"; its Dockerfile has {show(left_out)}, which was not run" if left_out else ""
        printed = f"printed {show(solved.output[-300:])}"
        did = "was ended, as it took too long, or too much" if solved.code is None else printed
        raise RuntimeError(
            f"{task.folder}: its own solution has a reward of {judged.reward:g} here{missing}; it {did}, and the tests "
            f"printed {show(judged.output[-300:])}"
        )


def _find(folder: str) -> Path:
    """A folder of tasks below the run's directory, or among the files that the job carries."""
    carried = Path(os.environ.get(FOLDER, "."), folder)
    return (carried if carried.is_dir() else Path(folder)).resolve()
