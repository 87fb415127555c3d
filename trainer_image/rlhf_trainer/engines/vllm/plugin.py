"""Entry point of this package in each of vLLM's processes."""

import multiprocessing
import os
import signal

from ...parent import end_with_parent
from .watchdog import quote_causes

BACKEND = "rlhf"


def register() -> None:
    """Entry point of `vllm.general_plugins`: vLLM calls it in each of its processes, in some more than once.

    Makes `--weight-transfer-config '{"backend": "rlhf"}'` known, and what a process dies of to its host. An engine ends
    with its server and a worker with its engine, also where those get SIGKILL: it would keep its GPU for nobody.
    """
    quote_causes()
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent()
        if not parent.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # register_engine raises for a name it knows
        WeightTransferEngineFactory.register_engine(
            BACKEND, "rlhf_trainer.engines.vllm.engine", "BroadcastEngine"
        )
