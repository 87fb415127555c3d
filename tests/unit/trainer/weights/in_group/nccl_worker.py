"""A worker of the NCCL group in a process of its own: `nccl_worker PORT TIMEOUT_S DEVICE`, told what to do by lines:
`join EPOCH RANK SIZE` and `receive UPDATE`, until there are no more."""

import sys
import time

import torch
import torch.distributed as dist

from rlhf_trainer.weights import stream
from rlhf_trainer.weights.group import Group, TransferFailed, connect_store


def main(port: int, timeout_s: float, device: torch.device) -> None:
    # vLLM has such a group in each of its processes: the first one is what torch's monitor watches over.
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    group: Group | None = None
    for line in sys.stdin:
        match line.split():
            case ["join", epoch, rank, size]:
                store = connect_store("127.0.0.1", port, epoch, timeout_s)
                group = Group(store, epoch, "a secret", int(rank), int(size), timeout_s, device)
            case ["receive", update]:
                assert group is not None
                began = time.monotonic()
                try:
                    _, digest = stream.receive(group, int(update))
                except TransferFailed as error:
                    group.abort()
                    torch.cuda.synchronize()  # the GPU still works
                    print("failed", round(time.monotonic() - began, 2), *str(error).split(), flush=True)
                else:
                    print("received", digest, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), torch.device(sys.argv[3]))
