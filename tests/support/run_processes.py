"""The live processes of a run, found by what their host gave them."""

from pathlib import Path
from socket import SOCK_DGRAM

import psutil


def listening(process: psutil.Process) -> set[tuple[str, str, int]]:
    """(name in the run, address, port) of each socket on which `rlhf run` (no name) and its processes listen."""
    trees = {"": [process]}
    for child in process.children():
        trees[environ(child).get("RLHF_NAME", "?")] = [child, *child.children(recursive=True)]
    return {
        (name, socket.laddr.ip, socket.laddr.port)
        for name, tree in trees.items()
        for each in tree
        for socket in each.net_connections("inet")
        if socket.status == psutil.CONN_LISTEN or (socket.type == SOCK_DGRAM and not socket.raddr)
    }


def environ(process: psutil.Process) -> dict[str, str]:
    """Empty of a process that has ended, or is another user's."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def processes(workdir: Path, name: str | None = None) -> list[psutil.Process]:
    """Those with the run's configuration file; `name` is `<role>-<i>`."""
    config = str(workdir.resolve() / "run.json")
    return [
        process
        for process in psutil.process_iter()
        if (variables := environ(process)).get("RLHF_RUN_CONFIG") == config
        and name in (None, variables["RLHF_NAME"])
    ]
