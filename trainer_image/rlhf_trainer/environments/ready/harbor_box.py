"""Keeps the files of one episode of a Harbor task, in which its commands, solution and tests run in a sandbox each."""

import asyncio
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_api.errors.problem import show
from rlhf_api.host.foreign_files import open_regular, parse_json

from ...process.numbers import finite_number
from ...process.sandbox import Place, sandbox_limits
from ...process.timeouts import Timeouts
from ...process.usage import out_of_memory_kills
from ..adapter import LARGEST_REWARD
from ..sandboxed import Ran, run_at, sizes_of
from .harbor_dockerfile import Copy
from .harbor_files import LOGS, SOLUTION, TESTS, Task

SHOWN = 16 << 10
"""Bytes of an output that are read, at most."""
LAST = f"tail -c {SHOWN}"
_IN_DIRECTORY = 'mkdir -p "$0" 2>/dev/null; cd "$0" 2>/dev/null; exec "$@"'
"""Runs a command in the task's directory, which another may have removed: then it is made again."""
_REMOVE = 'chmod -R u+rwx "$0"; rm -rf "$0"'
_MEGABYTES = 4096
"""Of address space of each process, unless `task.toml` says otherwise."""
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


class Box:
    """Files of one episode: the folders of the container's root in which the task's Dockerfile puts some, or in which
    its working directory lies, as commands leave them."""

    def __init__(self, task: Task) -> None:
        self._task, self._folder = task, Path(tempfile.mkdtemp())
        self._folder.chmod(0o711)  # programs may run as another user
        try:
            self._fill()
        except BaseException:
            self.remove()
            raise
        self._writable = {f"/{root}": self._folder / root for root in task.roots}
        self._before = sizes_of(self._writable.values())

    def _fill(self) -> None:
        task = self._task
        for copy in task.copies:
            _copy(copy, self._folder / copy.target.lstrip("/"))
        for path in (task.directory, *(f"/{root}" for root in task.roots)):
            (self._folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        _open(self._folder / root for root in task.roots)

    async def run(
        self,
        command: Sequence[str],
        cpu_seconds: int,
        seconds: float,
        readable: Mapping[str, Path] | None = None,
        writable: Mapping[str, Path] | None = None,
        variables: Mapping[str, str] | None = None,
        *,
        is_own: bool = False,
    ) -> Ran:
        """A command in the task's directory, with folders and variables besides its own; `is_own`: the task's, which
        may add to what others have left as much as these might."""
        task = self._task
        place = Place(
            readable or {},
            {**self._writable, **(writable or {})},
            "/",
            {**task.variables, **(variables or {})},
        )
        limits = sandbox_limits(task.settings.environment.memory_mb or _MEGABYTES, cpu_seconds)
        before = sizes_of(place.writable.values()) if is_own else self._before
        command = ("bash", "-c", _IN_DIRECTORY, task.directory, *command)
        return await run_at(place, command, limits, seconds, before=before)

    async def solve(self) -> Ran:
        """Runs the task's own solution."""
        solution, limits = self._task.solution, self._task.settings
        assert solution is not None, "it has one"
        seconds = limits.verifier.timeout_sec
        more = {SOLUTION: await asyncio.to_thread(self._lend, solution)}
        command = ("bash", "-c", script(f"bash {SOLUTION}/solve.sh", LAST))
        return await self.run(command, math.ceil(seconds), seconds, more, variables=limits.solution.env)

    async def judge(self, name: str) -> Judged:
        """Runs the task's tests, which write to folders that no command before could. Where they leave no reward, as
        they take too long or are ended, the files that they judge are to blame, with a reward of 0, as long as others
        leave one (`Timeouts`); else raises RuntimeError."""
        verifier, logs = self._task.settings.verifier, Path(tempfile.mkdtemp(dir=self._folder)).resolve()
        (logs / "verifier").mkdir()
        _open([logs])
        more = {TESTS: await asyncio.to_thread(self._lend, self._task.tests)}
        command = ("bash", "-c", script(f"bash {TESTS}/test.sh", LAST))
        seconds, judgments = verifier.timeout_sec, _JUDGMENTS[self._task.folder]
        began, kills = time.monotonic(), out_of_memory_kills()
        ran = await self.run(
            command, math.ceil(seconds), seconds, more, {LOGS: logs}, verifier.env, is_own=True
        )
        try:
            judged = Judged(_reward(logs, name), ran.output)
        except (OSError, ValueError) as error:
            if out_of_memory_kills() == kills and judgments.is_of_response(began):
                return Judged(0.0, ran.output)
            ended = f"its output ends with {show(ran.output[-300:])}"
            if ran.code is None:
                ended = f"it was ended, as it took longer than {seconds:g} s or its turn may, or too much"
            raise RuntimeError(f"{self._task.folder}/tests/test.sh: {error}; {ended}") from None
        judgments.record_end()
        return judged

    def remove(self) -> None:
        """Also folders that are nested deeper, or closed tighter, than Python removes."""
        with suppress(RecursionError):
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._folder.exists():
            subprocess.run(("sh", "-c", _REMOVE, self._folder), check=False, capture_output=True)

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
        if os.path.realpath(file) != str(file):
            raise ValueError(f"its {file.name} is a link")
        with open_regular(file) as opened:
            text = opened.read(SHOWN).decode(errors="replace").strip()
        number = _named(parse_json(text.encode()), name) if file.suffix == ".json" else text
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


def _copy(copy: Copy, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)

    def copy_file(source: str, place: str) -> None:
        shutil.copyfile(source, place)
        Path(place).chmod(Path(source).stat().st_mode if copy.mode is None else copy.mode)

    if copy.source.is_dir():
        shutil.copytree(copy.source, target, dirs_exist_ok=True, copy_function=copy_file)
    else:
        copy_file(str(copy.source), str(target))


def _open(folders: Iterable[Path]) -> None:
    """Lets every user read and write them, with all in them; those outside are kept out by the folder above."""
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))
