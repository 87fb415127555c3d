"""The verbs as a user runs them, against a real API server."""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tests.support.kubernetes.kube import eventually

from rlhf_operator import cli

_LONGEST_S = 240


@dataclass(frozen=True)
class Done:
    """A verb that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Running:
    """A verb that has not ended yet, and what it has printed."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def until(self, text: str, timeout: float = 240) -> None:
        """Waits until it has printed this, in either stream."""
        eventually(
            lambda: text in self.out.read_text() + self.err.read_text(), f"{text!r} is printed", timeout
        )

    def end(self, timeout: float = 240) -> Done:
        code = self.process.wait(timeout)
        return Done(code, self.out.read_text(), self.err.read_text())


@dataclass(frozen=True)
class Verbs:
    """`rlhf` for one namespace."""

    kubeconfig: Path
    namespace: str
    folder: Path

    def run(self, *arguments: str) -> Done:
        """In this process, which saves its start."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = cli.main([*arguments, *self._where])
        return Done(code, out.getvalue(), err.getvalue())

    @contextmanager
    def start(self, *arguments: str) -> Iterator[Running]:
        """Killed at the end, where it still runs."""
        out, err = self.folder / "out.txt", self.folder / "err.txt"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(self.command(*arguments), stdout=stdout, stderr=stderr)
        try:
            yield Running(process, out, err)
        finally:
            process.kill()
            process.wait(_LONGEST_S)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "rlhf_operator.cli", *arguments, *self._where]

    @property
    def _where(self) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig}", f"--namespace={self.namespace}"]
