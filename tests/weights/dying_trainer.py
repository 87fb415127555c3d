"""A trainer that kills itself at a point of its broadcast: `dying_trainer ADDRESS MODEL POINT`, token on stdin."""

import os
import signal
import sys
from pathlib import Path

import torch
from tests.weights.support import generator, load, weights

from rlhf_trainer.comms.http import Background
from rlhf_trainer.weights.broadcaster import WeightSync

if __name__ == "__main__":
    address, model, fatal = sys.argv[1:]

    def fault(point: str) -> None:
        if point == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    with Background(sys.stdin.read()) as http:
        settings = {"host": "127.0.0.1", "timeout_s": 20.0, "bucket_bytes": 1 << 16}
        sync = WeightSync(http, device=torch.device("cpu"), fault=fault, **settings)
        policy = load(Path(model))
        sync.send([generator(0, address)], lambda: weights(policy), 99)
