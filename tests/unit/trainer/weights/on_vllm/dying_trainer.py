"""A trainer that kills itself at a point of its broadcast, as a forked process."""

import os
import signal
from pathlib import Path

import torch
from tests.support.kubernetes.kube import eventually
from tests.unit.trainer.weights.support import TOKEN, generator, load, weights

from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import Broadcaster


def send(
    address: str,
    model: Path,
    fatal: str,
    keep: bool = False,
    takes_turns: bool = False,
    meeting: Path | None = None,
) -> None:
    """Weight version 99. Right before its commit makes the file `meeting` and waits until that is removed."""

    def fault(point: str) -> None:
        if point == "before-commit" and meeting is not None:
            meeting.touch()
            eventually(lambda: not meeting.exists(), "the commit is let go")
        if point == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    with HttpClient(TOKEN) as http:
        settings = {"host": "127.0.0.1", "timeout_s": 120.0, "bucket_bytes": 1 << 16, "keep": keep}
        settings["takes_turns"] = takes_turns
        sync = Broadcaster(http, device=torch.device("cpu"), fault=fault, **settings)
        policy = load(model)
        sync.send([generator(0, address)], lambda: weights(policy), 99)
