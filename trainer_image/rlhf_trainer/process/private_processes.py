"""Bubblewrap's namespaces around a command: processes, a /proc, a /tmp and a /dev/shm of its own, and no network unless
it may have it.

What runs there reads the files of this process, but none of its variables, and none of the files that hold keys; it
writes where it is let. The kernel limits what it takes.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.host.job_files import module_places
from rlhf_api.host.reaper import descendants
from rlhf_api.host.redaction import without_secrets

from . import process_groups
from .limits import TOOL
from .syscall_filter import filter_pipe

PROGRAM = "bwrap"
KEYS = (
    "RLHF_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
)
"""Variables that hold the keys of the job, of its store and of its trackers."""
KEY_FILES = ("AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS")
"""Variables that name a file with keys of the store."""
SERVICE_ACCOUNT = Path("/var/run/secrets")
"""Folder of a pod's own keys for the API server."""
TEMPORARY = ("/tmp", "/dev/shm")
_SECONDS = 30.0


@dataclass(frozen=True)
class Privacy:
    """Of a command: whether it may have this process's `network`; what of TEMPORARY is `readable` besides code, if it
    is there; `writable` folders; `megabytes` of each of TEMPORARY; whether its processes and /proc are its own, as
    those of what only starts such commands need not be."""

    network: bool = False
    readable: Sequence[str] = ()
    writable: Sequence[str] = ()
    megabytes: int = 64
    own_processes: bool = True

    def command(self, rules: int) -> list[str]:
        """The words in front of the command; `rules`: a descriptor of `filter_pipe`, to be passed."""
        return [PROGRAM, "--seccomp", str(rules), *self._options(), "--"]

    def _options(self) -> Iterator[str]:
        yield from ("--die-with-parent", "--unshare-user", "--unshare-ipc")
        if not self.network:
            yield "--unshare-net"
        yield from ("--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev")
        for folder in TEMPORARY:
            yield from ("--size", str(self.megabytes << 20), "--tmpfs", folder)
        for path in _visible((*_code_folders(), *self.readable)):
            yield from ("--ro-bind", path, path)
        for path in map(str, map(Path.absolute, map(Path, self.writable))):
            yield from ("--bind", path, path)
        own = ("--unshare-pid", "--proc", "/proc")
        yield from own if self.own_processes else ("--bind", "/proc", "/proc")
        if SERVICE_ACCOUNT.is_dir():
            yield from ("--tmpfs", str(SERVICE_ACCOUNT.resolve()))
        for name in KEY_FILES:
            file = Path(os.environ.get(name, ""))
            if file.is_file():
                yield from ("--ro-bind", "/dev/null", str(file.resolve()))


def variables_for(*, network: bool) -> dict[str, str]:
    """This process's variables without KEYS and KEY_FILES; and without any secret for a command that has no `network`
    in which to show it."""
    variables = dict(os.environ) if network else without_secrets(os.environ)
    return {name: value for name, value in variables.items() if name not in (*KEYS, *KEY_FILES)}


async def why_impossible() -> str:
    """The reason why no process can run there on this machine; empty where it can."""
    for tool, package in ((PROGRAM, "bubblewrap 0.8 or newer"), (TOOL, "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} (of {package}) is missing"
    try:
        with filter_pipe() as rules:
            process = await process_groups.start(
                *Privacy().command(rules),
                "true",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                process_group=0,
                pass_fds=(rules,),
                env=variables_for(network=False),
            )
    except KeyError as error:
        return f"the system calls of this machine ({error}) are not known"
    errors = b""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                _, errors = await process.communicate()
    finally:
        code = await process_groups.end(process)
    reason = errors.decode(errors="replace").strip()[-300:] or f"{PROGRAM} ended with exit code {code}"
    return "" if code == 0 else reason


def first_inside(outside: int) -> int:
    """The first process in the namespace of a command with processes of its own, by the one that was started for it; 0
    if there is none."""
    return next(iter(descendants(outside)), 0)


def how_ended(code: int) -> str:
    """As `process_groups.how_ended`; bubblewrap's exit code is 128 and the signal that ended the command."""
    signals = {128 + number: -number for number in signal.valid_signals()}
    return process_groups.how_ended(signals.get(code, code))


def _code_folders() -> list[str]:
    """The directories where this process works, and from which it and those that it starts import."""
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [str(Path.cwd()), sys.prefix, sys.base_prefix, *sys.path, *module_places(), *filter(None, added)]


def _visible(paths: Iterable[str]) -> list[str]:
    """Those below TEMPORARY, without what is in another of them."""
    tops = {Path(top) for top in TEMPORARY}
    inside = {path for path in map(Path.absolute, map(Path, paths)) if tops & {*path.parents}}
    there = {path for path in inside if path.exists()}
    return sorted(str(path) for path in there if not there & {*path.parents})
