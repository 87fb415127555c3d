"""torch's raw process groups, neither the default group nor made through it: gloo on CPU, NCCL on GPU."""

import concurrent.futures
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import BroadcastOptions, ProcessGroupGloo

IN_CONSTRUCTOR = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0"}
"""Environment variables while torch constructs an NCCL group. With torch's defaults a lost peer ends the process; and
if its connection reports the loss (TCP, not NVLink), the watchdog first sleeps for a minute, for which the destruction
of the group waits."""


def connect(
    store: PrefixStore, rank: int, size: int, *, timeout_s: float, device: torch.device, host: str
) -> Any:
    """A group of `size` for tensors on `device`, all members connected; `host` is where rank 0 is.

    Raises:
        RuntimeError: someone did not connect within `timeout_s`.
    """
    make = _nccl if device.type == "cuda" else _gloo
    return _within(timeout_s, lambda: make(store, rank, size, timeout_s, device, host))


def _within(timeout_s: float, make: Callable[[], Any]) -> Any:
    # NCCL's connect has no timeout: after ours its thread is left behind.
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(make())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcome.result(timeout_s + 1)  # gloo enforces the timeout itself, and names the missing member
    except TimeoutError:
        raise RuntimeError(f"the members did not connect within {timeout_s:g} s") from None


def _gloo(
    store: PrefixStore, rank: int, size: int, timeout_s: float, _device: torch.device, host: str
) -> ProcessGroupGloo:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not in torch's stubs
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 2
    # Our address on the way to the trainer; gloo would take the host name's, which others may not reach.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        options._devices = [ProcessGroupGloo.create_device(hostname=probe.getsockname()[0])]
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(
    store: PrefixStore, rank: int, size: int, timeout_s: float, device: torch.device, _host: str
) -> Any:
    from torch.distributed import ProcessGroupNCCL  # not in torch's CPU build

    torch.cuda.set_device(device)
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=100 * timeout_s)  # the watchdog's, which must not come before ours
    with _environment(IN_CONSTRUCTOR):
        group = ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    # NCCL connects the peers in the first collective, which blocks the caller until all have called it.
    group.broadcast([torch.zeros(1, device=device)], BroadcastOptions()).wait()  # type: ignore[attr-defined]
    torch.cuda.synchronize(device)
    return group


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
