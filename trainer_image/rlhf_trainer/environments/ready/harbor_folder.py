"""Plays an episode of a Harbor task on this machine: each command is a sandbox of its own, over folders that stay."""

import asyncio
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rlhf_api.host.foreign_files import open_regular

from ...process.sandbox import Place, sandbox_limits
from ..sandboxed import Ran, remove_folder, run_at, sizes_of
from .harbor_box import REWARDS, SHOWN, WALL, Box, in_task
from .harbor_dockerfile import Copy
from .harbor_files import LOGS, TESTS, Task

_MEGABYTES = 4096
"""Of address space of each process, unless `task.toml` says otherwise."""


class FolderBox(Box):
    """The folders of the container's root in which the task's Dockerfile puts some, or in which its working directory
    lies, as commands leave them."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._folder = Path(tempfile.mkdtemp())
        self._folder.chmod(0o711)  # programs may run as another user
        try:
            self._fill()
        except BaseException:
            remove_folder(self._folder)
            raise
        self._writable = {f"/{root}": self._folder / root for root in task.roots}
        self._before, self._logs = sizes_of(self._writable.values()), self._folder

    def _fill(self) -> None:
        task = self.task
        for copy in task.copies:
            _copy(copy, self._folder / copy.target.lstrip("/"))
        for path in (task.directory, *(f"/{root}" for root in task.roots)):
            (self._folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        _open(self._folder / root for root in task.roots)

    async def run(self, command: Sequence[str], seconds: int) -> Ran:
        place = Place({}, self._writable, "/", self.task.variables)
        return await self._run(command, seconds, WALL * seconds, place, self._before)

    async def _run(
        self, command: Sequence[str], cpu_seconds: int, seconds: float, place: Place, before: tuple[int, int]
    ) -> Ran:
        limits = sandbox_limits(self.task.settings.environment.memory_mb or _MEGABYTES, cpu_seconds)
        return await run_at(place, in_task(self.task, command), limits, seconds, before=before)

    async def _run_of_task(
        self, script_text: str, at: str, folder: Path, seconds: float, variables: Mapping[str, str]
    ) -> Ran:
        """Tests may add to what others have left as much as these might."""
        writable, before = self._writable, self._before
        if at == TESTS:
            self._logs = Path(tempfile.mkdtemp(dir=self._folder)).resolve()
            (self._logs / "verifier").mkdir()
            _open([self._logs])
            writable = {**writable, LOGS: self._logs}
            before = sizes_of(writable.values())
        lent = {at: await asyncio.to_thread(self._lend, folder)}
        place = Place(lent, writable, "/", {**self.task.variables, **variables})
        return await self._run(("bash", "-c", script_text), math.ceil(seconds), seconds, place, before)

    async def _read_rewards(self) -> dict[str, str]:
        """Raises ValueError for links."""
        texts = dict[str, str]()
        for file in (self._logs / "verifier" / name for name in REWARDS):
            if not os.path.lexists(file):
                continue
            if os.path.realpath(file) != str(file):
                raise ValueError(f"its {file.name} is a link")
            with open_regular(file) as opened:
                texts[file.name] = opened.read(SHOWN).decode(errors="replace")
        return texts

    async def remove(self) -> None:
        await asyncio.to_thread(remove_folder, self._folder)

    def _lend(self, folder: Path) -> Path:
        """A copy that the sandbox's user can read."""
        copy = Path(tempfile.mkdtemp(dir=self._folder)) / folder.name
        shutil.copytree(folder, copy)
        _open([copy.parent])
        return copy


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
