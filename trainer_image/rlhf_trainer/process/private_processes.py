"""Bubblewrap's namespaces around a worker: processes and a /proc of its own, and no network unless it may have it.

What runs there sees the files of this process, but none of its variables, and none of the files that hold keys.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from . import process_groups

PROGRAM = "bwrap"
PARENT = 1
"""Number of a worker's parent in there: bubblewrap's own process, which waits for all that is left behind."""
KEYS = (
    "RLHF_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
)
"""Variables that hold the keys of the job and of its store."""
KEY_FILES = ("AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS")
"""Variables that name a file with keys of the store."""
SERVICE_ACCOUNT = Path("/var/run/secrets")
"""Folder of a pod's own keys for the API server."""
_SECONDS = 30.0


def without_keys() -> dict[str, str]:
    """The variables of this process but for those of keys."""
    return {name: value for name, value in os.environ.items() if name not in (*KEYS, *KEY_FILES)}


def private_command(*, network: bool) -> list[str]:
    """The words in front of a command that runs there."""
    return [*_options(network=network), "--"]


async def why_impossible() -> str:
    """The reason why no process can run there on this machine; empty where it can."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} (of bubblewrap 0.8 or newer) is missing"
    process = await asyncio.create_subprocess_exec(
        *private_command(network=False),
        "true",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        process_group=0,
        env=without_keys(),
    )
    errors = b""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                _, errors = await process.communicate()
    finally:
        code = await process_groups.end(process)
    reason = errors.decode(errors="replace").strip()[-300:] or f"{PROGRAM} ended with exit code {code}"
    return "" if code == 0 else reason


def _options(*, network: bool) -> Iterator[str]:
    yield from (PROGRAM, "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc")
    if not network:
        yield "--unshare-net"
    yield from ("--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc")
    if SERVICE_ACCOUNT.is_dir():
        yield from ("--tmpfs", str(SERVICE_ACCOUNT.resolve()))
    for name in KEY_FILES:
        file = Path(os.environ.get(name, ""))
        if file.is_file():
            yield from ("--ro-bind", "/dev/null", str(file.resolve()))
