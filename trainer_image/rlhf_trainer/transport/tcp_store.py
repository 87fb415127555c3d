"""torch's TCPStore, which listens where the HTTP servers do: on loopback, if only this machine connects. torch's own
listens on all interfaces, and whoever connects may read, write and list all keys.
"""

import importlib
import socket
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from ..process.addresses import is_loopback

BACKLOG = 4096
"""Connections that wait to be accepted: all ranks and workers may come at once."""


def tcp_store(
    host_name: str,
    port: int,
    world_size: int | None = None,
    is_master: bool = False,
    timeout: timedelta = timedelta(minutes=5),
    wait_for_workers: bool = True,
    multi_tenant: bool = False,
    master_listen_fd: int | None = None,
    use_libuv: bool = True,
) -> TCPStore:
    """As the class itself, whose place it takes in `use_everywhere`."""
    if is_master and master_listen_fd is None and is_loopback(host_name):
        family = socket.AF_INET6 if ":" in host_name else socket.AF_INET
        with socket.create_server((host_name, port), family=family, backlog=BACKLOG) as listening:
            port, master_listen_fd = listening.getsockname()[1], listening.detach()
    return TCPStore(
        host_name,
        port,
        world_size=world_size,
        is_master=is_master,
        timeout=timeout,
        wait_for_workers=wait_for_workers,
        multi_tenant=multi_tenant,
        master_listen_fd=master_listen_fd,
        use_libuv=use_libuv,
    )


def use_everywhere() -> None:
    """Has torch itself make its stores so, in this process: torchrun's, and those of process groups by address, as
    vLLM's."""
    for name in (
        "torch.distributed.rendezvous",
        "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
    ):
        module: Any = importlib.import_module(name)  # torch.distributed has a function of that name too
        module.TCPStore = tcp_store
