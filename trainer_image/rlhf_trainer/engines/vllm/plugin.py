"""Plugin entry point of this package in each of vLLM's processes."""

import multiprocessing
import os
import signal

from ...parent import end_with_parent
from .watchdog import quote_causes

BACKEND = "rlhf"


def register() -> None:
    """Entry point of `vllm.general_plugins`: vLLM calls it in each of its processes, possibly more than once.

    Registers the backend of `--weight-transfer-config '{"backend": "rlhf"}'`, and reports fatal errors to the host.
    Ties the life of an engine to its server and of a worker to its engine, also under SIGKILL: an orphan would hold its
    GPU.
    """
    quote_causes()
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent()
        if not parent.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # register_engine raises for a registered name
        WeightTransferEngineFactory.register_engine(
            BACKEND, "rlhf_trainer.engines.vllm.engine", "BroadcastEngine"
        )
