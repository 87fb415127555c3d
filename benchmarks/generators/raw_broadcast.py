"""Times bare broadcasts of so many bytes from one piece of memory to one of another process."""

import subprocess
import sys
import time

import torch

from rlhf_trainer.weights.group import Group, connect_store, host_store, publish_epoch

HOST, TIMEOUT_S, EPOCH, ROUNDS = "127.0.0.1", 60.0, "raw", 5


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peer(port: int, nbytes: int, device: torch.device) -> None:
    """The other end of `seconds`, a process of its own."""
    group = Group(connect_store(HOST, port, EPOCH, TIMEOUT_S), EPOCH, "", 1, 2, TIMEOUT_S, device)
    room = torch.empty(nbytes, dtype=torch.uint8, device=device)
    for _ in range(ROUNDS):
        group.wait(group.broadcast(room))
    synchronize(device)


def seconds(nbytes: int, device: torch.device, peer_device: str) -> list[float]:
    """Seconds of each broadcast of so many bytes from one piece of memory to one."""
    store = host_store(HOST, TIMEOUT_S)
    publish_epoch(store, EPOCH)
    arguments = [str(store.port), str(nbytes), peer_device]
    other = subprocess.Popen([sys.executable, __file__, *arguments])
    group = Group(store, EPOCH, "", 0, 2, TIMEOUT_S, device)
    room = torch.randint(0, 255, (nbytes,), dtype=torch.uint8, device=device)
    durations = []
    for _ in range(ROUNDS):
        synchronize(device)
        began = time.monotonic()
        work = group.broadcast(room)
        work.wait()  # the group's own looks at intervals
        synchronize(device)
        durations.append(time.monotonic() - began)
        group.wait(work)
    other.wait(60)
    group.abort()
    return durations


if __name__ == "__main__":
    peer(int(sys.argv[1]), int(sys.argv[2]), torch.device(sys.argv[3]))
