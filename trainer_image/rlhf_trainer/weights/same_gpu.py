"""Broadcasts on one GPU: the receivers map the sender's memory and copy from it. NCCL refuses two members on a GPU."""

import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

BOOT_ID, IPC_NAMESPACE = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/ipc")
WINDOW_BYTES = 256 << 20


def find_place(device: torch.device) -> str:
    """Name of a GPU of this host, the same in all processes that can map each other's memory on it. '' on a CPU."""
    if device.type != "cuda":
        return ""
    properties: Any = torch.cuda.get_device_properties(device)
    return f"{BOOT_ID.read_text().strip()} {IPC_NAMESPACE.readlink()} {properties.uuid}"


class Window:
    """Memory of the sender's GPU that receivers may map: WINDOW_BYTES, taken when it is first needed and kept, since it
    may be mapped for as long as its receivers live. Beside torch's allocator, whose memory is not always shareable."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @cached_property
    def address(self) -> int:
        with torch.cuda.device(self.device):
            return int(_call("cudaMalloc", WINDOW_BYTES))

    @cached_property
    def handle(self) -> str:
        """The name under which another process maps it, as hexadecimal digits."""
        return bytes(_call("cudaIpcGetMemHandle", self.address).reserved).hex()


class Sending:
    """A broadcast by the sender, part by part: each question for its end sends the next one, once all have the last."""

    def __init__(self, steps: Iterator[None]) -> None:
        self._steps = steps

    def is_completed(self) -> bool:
        return next(self._steps, self) is self

    def wait(self) -> None:
        """Nothing is left to wait for once it is completed."""


class SameGpu:
    """The sender of `window`, or one of its `receivers`. Its broadcasts, like those of a process group, come in the
    same order on all members. What goes by `publish` and `wait_for` has the epoch's proof of who wrote it."""

    def __init__(
        self,
        store: PrefixStore,
        publish: Callable[[str, Any], None],
        wait_for: Callable[[str], Any],
        *,
        receivers: int = 0,
        window: Window | None = None,
    ) -> None:
        self._store, self._publish, self._wait_for = store, publish, wait_for
        self._receivers, self._window = receivers, window
        self._last: Sending | None = None
        self._mapped: int | None = None
        self._closed, self._lock = False, threading.Lock()
        self._windows = 0

    def broadcast(self, tensor: Tensor) -> Sending | None:
        """On the sender, starts a broadcast of `tensor`, uint8 [n] on the GPU; on a receiver, fills it: then
        nothing is left to wait for."""
        parts = tensor.split(WINDOW_BYTES)
        if self._window is not None:
            self._last = Sending(self._send(parts, self._window, self._last))
            self._last.is_completed()  # its first part goes out now, where the window is free
            return self._last
        for part in parts:
            self._receive(part)
        return None

    def close(self) -> None:
        """Unmaps the sender's memory, from any thread."""
        with self._lock:
            self._closed = True
            mapped, self._mapped = self._mapped, None
            if mapped is not None:
                _call("cudaIpcCloseMemHandle", mapped)

    def _send(self, parts: tuple[Tensor, ...], window: Window, before: Sending | None) -> Iterator[None]:
        """Yields while receivers have not copied a part, of this broadcast or of the one before."""
        while before is not None and not before.is_completed():
            yield
        for part in parts:
            key = self._next_key()
            _copy(window.address, part.data_ptr(), part)
            self._publish(key, {"window": window.handle, "bytes": len(part)})
            while self._store.add(f"{key}/copied", 0) < self._receivers:
                yield
            for name in (key, f"{key}/copied"):
                self._store.delete_key(name)

    def _receive(self, part: Tensor) -> None:
        key = self._next_key()
        message = self._wait_for(key)
        if message["bytes"] != len(part):
            raise RuntimeError(f"{len(part)} bytes were announced, {message['bytes']} are there")
        with self._lock:
            if self._closed:
                raise RuntimeError("this member gave the epoch up")
            if self._mapped is None:
                self._mapped = map_window(message["window"], part.device)
            _copy(part.data_ptr(), self._mapped, part)
        self._store.add(f"{key}/copied", 1)

    def _next_key(self) -> str:
        self._windows += 1
        return f"window/{self._windows}"


def map_window(handle: str, device: torch.device) -> int:
    """Address of another process's window in this one, on the same GPU."""
    named = _runtime().cudaIpcMemHandle_t()
    named.reserved = bytes.fromhex(handle)
    with torch.cuda.device(device):
        return int(_call("cudaIpcOpenMemHandle", named, _runtime().cudaIpcMemLazyEnablePeerAccess))


def _copy(into: int, source: int, tensor: Tensor) -> None:
    """Copies the bytes of `tensor`, one of both, after what its stream has under way; returns when they are there."""
    kind, stream = (
        _runtime().cudaMemcpyKind.cudaMemcpyDeviceToDevice,
        torch.cuda.current_stream(tensor.device),
    )
    _call("cudaMemcpyAsync", into, source, tensor.nbytes, kind, stream.cuda_stream)
    stream.synchronize()


def _call(function: str, *arguments: Any) -> Any:
    """The result of a function of CUDA's runtime. Raises RuntimeError with CUDA's own words."""
    runtime = _runtime()
    error, *results = getattr(runtime, function)(*arguments)
    if error != runtime.cudaError_t.cudaSuccess:
        _, words = runtime.cudaGetErrorString(error)
        raise RuntimeError(f"{function}: {words.decode() if isinstance(words, bytes) else words}")
    return results[0] if results else None


def _runtime() -> Any:
    from cuda.bindings import runtime  # comes with torch's builds for CUDA

    return runtime
