"""A sandbox's pod on this machine: its server as the first process of a namespace, with files of its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.ports import free_port
from tests.unit.operator.cluster.objects.test_pod import pinned

from rlhf_operator.cluster.objects.sandbox_pod import FOLDER, sandbox_files, sandbox_volumes
from rlhf_trainer.process.sandbox import SYSTEM

_WRITABLE = ("/app", "/tests", "/logs", "/solution")
"""Folders that its image has, for every user."""
_PYTHON = "/python"


@dataclass
class SandboxPod:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    """Its termination message."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def server(self) -> psutil.Process:
        """The first process of its namespace."""
        (first,) = psutil.Process(self.process.pid).children()
        return first

    def kill(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it ends now by itself, after its episode
            for each in psutil.Process(self.process.pid).children():
                each.kill()
        self.process.wait()


@contextmanager
def sandbox_pod(folder: Path, token: str) -> Iterator[SandboxPod]:
    """A pod that listens; ends with the context."""
    log, port = folder / "termination-log", free_port()
    _furnish(folder / "server")
    log.touch()
    log.chmod(0o666)
    variables = {
        "PATH": f"{_PYTHON}/bin:/usr/bin:/bin",
        "RLHF_HOST": "127.0.0.1",
        "RLHF_PORT": str(port),
        "RLHF_TOKEN": token,
        "RLHF_TERMINATION_LOG": "/termination-log",
    }
    command = (*_root(folder), *_as_user(port), "python3", "-I", "-S", FOLDER)
    pod = SandboxPod(subprocess.Popen(command, env=variables), port, log)
    try:
        while pod.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                pass
        yield pod
    finally:
        pod.kill()


def _as_user(number: int) -> Iterator[str]:
    """Words that make a user of its own, whose processes the kernel counts; this machine's other one is root."""
    if os.geteuid() == 0:
        yield from ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups")
        yield from ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


def _furnish(folder: Path) -> None:
    """The volume with the server."""
    config = pinned().config
    texts = sandbox_files(config.job, "u")["data"]
    (server,) = [each for each in sandbox_volumes(config, config.spec.pods, "u") if each["name"] == "server"]
    for item in server["configMap"]["items"]:
        file = folder / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(texts[item["key"]])


def _root(folder: Path) -> Iterator[str]:
    """Words in front of a command: a container's, whose root is its own."""
    yield from ("bwrap", "--unshare-pid", "--as-pid-1", "--die-with-parent")
    for path in (Path("/", name) for name in SYSTEM):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--ro-bind", sys.base_prefix, _PYTHON, "--dev", "/dev", "--proc", "/proc")
    yield from ("--perms", "1777", "--tmpfs", "/tmp")
    for path in _WRITABLE:
        yield from ("--perms", "0777", "--dir", path)
    yield from ("--ro-bind", str(folder / "server"), FOLDER, "--chdir", "/tmp")
    yield from ("--bind", str(folder / "termination-log"), "/termination-log")
