"""Keeps the files of one episode of a Harbor task, in which its commands, solution and tests run in a sandbox each."""

import asyncio
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_api.errors.problem import show
from rlhf_api.host.foreign_files import open_regular

from ...process.numbers import finite_number
from ...process.sandbox import Place, sandbox_limits
from ..adapter import LARGEST_REWARD
from ..sandboxed import Ran, run_at
from .harbor_files import LOGS, SOLUTION, TESTS, Task

SHOWN = 16 << 10
"""Characters of an output that are read, at most."""
_MEGABYTES = 4096
"""Of address space of each process, unless `task.toml` says otherwise."""


class Judged(NamedTuple):
    """Reward of what a sandbox holds, and the end of what the tests printed."""

    reward: float
    output: str


class Box:
    """Files of one episode: the folders of the container's root in which the task's Dockerfile puts some, or in which
    its working directory lies, as commands leave them."""

    def __init__(self, task: Task) -> None:
        self._task, self._folder = task, Path(tempfile.mkdtemp())
        self._folder.chmod(0o711)  # programs may run as another user
        for source, target in task.copies:
            _copy(source, self._folder / target.lstrip("/"))
        for path in (task.directory, *(f"/{root}" for root in task.roots)):
            (self._folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        _open(self._folder / root for root in task.roots)
        self._writable = {f"/{root}": self._folder / root for root in task.roots}

    async def run(
        self,
        command: Sequence[str],
        cpu_seconds: int,
        seconds: float,
        readable: Mapping[str, Path] | None = None,
        writable: Mapping[str, Path] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Ran:
        """A command in the task's directory, with folders and variables besides its own."""
        task = self._task
        place = Place(
            readable or {},
            {**self._writable, **(writable or {})},
            task.directory,
            {**task.variables, **(variables or {})},
        )
        limits = sandbox_limits(task.settings.environment.memory_mb or _MEGABYTES, cpu_seconds)
        return await run_at(place, command, limits, seconds)

    async def solve(self) -> Ran:
        """Runs the task's own solution."""
        solution, limits = self._task.solution, self._task.settings
        assert solution is not None, "it has one"
        seconds = limits.verifier.timeout_sec
        more = {SOLUTION: await asyncio.to_thread(self._lend, solution)}
        command = ("bash", "-c", f"bash {SOLUTION}/solve.sh 2>&1")
        return await self.run(command, math.ceil(seconds), seconds, more, variables=limits.solution.env)

    async def judge(self, name: str) -> Judged:
        """Runs the task's tests, which write to folders that no command before could. Raises RuntimeError where they
        leave no reward."""
        verifier, logs = self._task.settings.verifier, Path(tempfile.mkdtemp(dir=self._folder)).resolve()
        (logs / "verifier").mkdir()
        _open([logs])
        more = {TESTS: await asyncio.to_thread(self._lend, self._task.tests)}
        command = ("bash", "-c", f"bash {TESTS}/test.sh 2>&1 | tail -c {SHOWN}")
        seconds = verifier.timeout_sec
        ran = await self.run(command, math.ceil(seconds), seconds, more, {LOGS: logs}, variables=verifier.env)
        try:
            return Judged(_reward(logs, name), ran.output)
        except (OSError, ValueError) as error:
            raise RuntimeError(
                f"{self._task.folder}/tests/test.sh: {error}; its output ends with {show(ran.output[-300:])}"
            ) from None

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _lend(self, folder: Path) -> Path:
        """A copy that the sandbox's user can read."""
        copy = Path(tempfile.mkdtemp(dir=self._folder)) / folder.name
        shutil.copytree(folder, copy)
        _open([copy.parent])
        return copy


def _reward(logs: Path, name: str) -> float:
    """Of `reward.json`, or `reward.txt`. Raises ValueError for what is no finite number, and for links: what the tests
    have run may have left them."""
    for file in (logs / "verifier" / "reward.json", logs / "verifier" / "reward.txt"):
        if not os.path.lexists(file):
            continue
        if file.resolve() != file:
            raise ValueError(f"its {file.name} is a link")
        with open_regular(file) as opened:
            text = opened.read(SHOWN).decode(errors="replace").strip()
        number = _named(json.loads(text), name) if file.suffix == ".json" else text
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


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
        target.chmod(source.stat().st_mode)


def _open(folders: Iterable[Path]) -> None:
    """Lets every user read and write them, with all in them; those outside are kept out by the folder above."""
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))
