"""Takes a cluster down, or what an interrupted one left: no process, link, route, control group or file stays."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster.node import Place

_MARK = ".rlhf-test-cluster"
_GONE_S = 120


def claim(place: Place) -> None:
    """Makes the state folder, and marks it as one that may be deleted."""
    place.logs.mkdir(parents=True)
    (place.state / _MARK).touch()


def running(place: Place) -> bool:
    return bool(processes(place))


def down(place: Place) -> None:
    """Works with any part of it, or nothing, being there.

    Raises:
        RuntimeError: something is still there after half a minute, or the folder holds other things.
    """
    if place.state.exists() and any(place.state.iterdir()) and not (place.state / _MARK).exists():
        raise RuntimeError(f"{place.state} is not a test cluster's folder: name another one with --state")
    if place.first is None:
        down(place.second)
    deadline = time.monotonic() + _GONE_S
    kill(place)
    subprocess.run(["ip", "link", "delete", place.link], capture_output=True, timeout=120, check=False)
    route = ["ip", "route", "delete", "unreachable", str(place.subnet)]
    subprocess.run(route, capture_output=True, timeout=120, check=False)
    while (left := _control_groups(place)) and time.monotonic() < deadline:
        for folder in left:
            with suppress(OSError):  # busy for a moment longer
                folder.rmdir()
    # Last, so that what could not be removed can be looked into, and removed by another call.
    if left := [*processes(place), *_control_groups(place)]:
        raise RuntimeError(f"still there after {_GONE_S} s: {left}")
    if place.state.exists():
        shutil.rmtree(place.state)


def kill(place: Place) -> None:
    """Ends all of its processes at once, as when its machine loses power; within half a minute."""
    deadline = time.monotonic() + _GONE_S
    while (left := processes(place)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes(place: Place) -> list[int]:
    """The first process inside and the one that made the namespaces for it. All others end with them."""
    pids = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            _, mark, rest = cmdline.read_bytes().partition(b"\0tests.cluster.inside\0")
            if mark and rest.startswith(str(place.state).encode() + b"\0"):
                pids.append(int(cmdline.parent.name))
    return pids


def _control_groups(place: Place) -> list[Path]:
    """Innermost first."""
    top = Path("/sys/fs/cgroup").glob(f"*/{place.cgroup}")
    return [folder for each in top for folder in sorted([each, *each.rglob("*/")], reverse=True)]
