"""Completion of the command line, in real shells and through kubectl."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlhf_operator import cli
from rlhf_operator.kubectl import complete_main

DEADLINE_S = 120.0
PROGRAMS = Path(sys.executable).parent
SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
}


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._shown = descriptor, ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def until(self, text: str) -> None:
        """Waits until this is on the screen, and forgets what was before it."""
        end = time.monotonic() + DEADLINE_S
        while text not in self._shown:
            readable, _, _ = select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))
            assert readable, f"no {text!r} in {self._shown!r}"
            self._shown += os.read(self._descriptor, 4096).decode(errors="replace")
            self._shown = self._shown.replace(" \b", "")  # zsh takes a space back before it writes another
        self._shown = self._shown.partition(text)[2]


@contextmanager
def terminal(command: tuple[str, ...], folder: Path) -> Iterator[Terminal]:
    process, descriptor = pty.fork()
    if process == 0:
        os.chdir(folder)
        path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "TERM": "dumb", "PS1": "> ", "HOME": str(folder), "KUBECONFIG": "/none"}
        os.execvpe(command[0], command, environment)
    try:
        yield Terminal(descriptor)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(descriptor)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_options_values_files_and_fields(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    (tmp_path / "my-job.yaml").touch()
    with terminal(SHELLS[shell], tmp_path) as shown:
        begin = "autoload -U compinit && compinit -D -u; " if shell == "zsh" else ""
        shown.type(f"{begin}source <(rlhf completion {shell}); echo RE''ADY\n")
        shown.until("READY")
        for typed, line in {
            "rlhf vali\tmy\t--no-f\t": "rlhf validate my-job.yaml --no-files",
            "rlhf logs --role gen\t": "rlhf logs --role generator",
            "rlhf run my\tppo.klCoe\t": "rlhf run my-job.yaml ppo.klCoefficient=",
        }.items():
            for part in typed.splitlines(keepends=True):
                shown.type(part)
            shown.until(line)
            shown.type("\x15\n")  # the line is deleted


def answers(capsys: pytest.CaptureFixture[str], *line: str) -> list[str]:
    """Words, without their descriptions, and the directive."""
    assert cli.main(["completion", "words", "--", *line]) == 0
    return [each.partition("\t")[0] for each in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("sub",), ["submit", ":4"]),
        (("data", "s"), ["show", ":4"]),
        (("run", "--mode", "l"), ["local", ":4"]),
        (("run", "--mode=l"), ["--mode=local", ":4"]),
        (("run", "--resume", "--workd"), ["--workdir", ":4"]),
        (("run", "--workdir", ""), [":0"]),
        (("submit", "job.yaml", "--include", "a.py", ""), [":0"]),
        (("submit", "--include", "a.py", "--forc"), ["--force-conflicts", ":4"]),
        (("run", "job.yaml", "--", "--res"), [":6"]),
        (("logs", "--tail", ""), [":4"]),
        (("suspend", "ppo", ""), [":4"]),
        (("run", "job.yaml", "--set", "dpo.bet"), ["dpo.beta=", ":6"]),
        (("no-such-command", "--x", "y", "\x1b[2J"), [":4"]),
    ],
    ids=" ".join,
)
def test_words_of_a_line(line, expected, capsys):
    assert answers(capsys, *line) == expected


def test_without_a_cluster_there_are_no_names_and_no_errors(monkeypatch, capsys):
    monkeypatch.setenv("KUBECONFIG", "/none")
    assert answers(capsys, "status", "") == [":0"]
    assert complete_main(["suspend", ""]) == 0
    assert capsys.readouterr() == (":4\n", "")


def test_kubectl_completes_its_plugin(tmp_path: Path) -> None:
    for program, function in {
        "kubectl-rlhf": "kubectl_rlhf",
        "kubectl_complete-rlhf": "kubectl_complete_rlhf",
    }.items():
        script = f"#!{sys.executable}\nimport sys\nfrom rlhf_operator.entry import {function}\nsys.exit({function}())\n"
        (tmp_path / program).write_text(script)
        (tmp_path / program).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(PROGRAMS), os.environ["PATH"]])
    done = subprocess.run(
        [str(PROGRAMS / "kubectl"), "__complete", "rlhf", "logs", "--role", "gen"],
        env={**os.environ, "PATH": path, "KUBECONFIG": "/none"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.splitlines() == ["generator", ":4"]
