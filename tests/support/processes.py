"""Server processes of a test: a log for each, and none outlives the test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

STOP_S = 60


@dataclass(frozen=True)
class Processes:
    """Processes by name, with their logs in `folder`."""

    folder: Path
    _group: int
    running: dict[str, subprocess.Popen] = field(default_factory=dict)

    def launch(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=self._group,
            )

    def check(self) -> None:
        """Raises RuntimeError with the end of its log, if one of them has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} has ended: {log}")


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """They are killed afterwards, or when this process dies."""
    # The group's first process kills the group when its pipe from here closes, whatever this process died of.
    keeper = subprocess.Popen(["sh", "-c", "read _; kill -KILL 0"], stdin=subprocess.PIPE, process_group=0)
    made = Processes(folder, keeper.pid)
    try:
        yield made
    finally:
        keeper.stdin.close()
        keeper.wait(STOP_S)
        for process in made.running.values():
            process.wait(STOP_S)
