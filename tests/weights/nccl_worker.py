"""A worker of the NCCL group in a process of its own: `nccl_worker PORT EPOCH TIMEOUT_S UPDATES`."""

import sys
import time

import torch

from rlhf_trainer.weights import stream
from rlhf_trainer.weights.group import Group, TransferFailed, connect_store

if __name__ == "__main__":
    port, epoch, timeout_s, updates = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    store = connect_store("127.0.0.1", port, epoch, timeout_s)
    group = Group(store, epoch, 1, 2, timeout_s, torch.device("cuda:1"))
    for update in range(1, updates + 1):
        began = time.monotonic()
        try:
            _, digest = stream.receive(group, update)
        except TransferFailed as error:
            print("failed", round(time.monotonic() - began, 2), error, flush=True)
            group.abort()
            torch.cuda.synchronize()  # the GPU still works
            break
        print("received", digest, flush=True)
