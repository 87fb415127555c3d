"""Makes `--weight-transfer-config '{"backend": "rlhf"}'` known to vLLM, and what its processes die of to their host."""

from .watchdog import quote_causes

BACKEND = "rlhf"


def register() -> None:
    """Entry point of `vllm.general_plugins`: vLLM calls it in each of its processes, in some more than once."""
    quote_causes()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # register_engine raises for a name it knows
        WeightTransferEngineFactory.register_engine(
            BACKEND, "rlhf_trainer.engines.vllm.engine", "BroadcastEngine"
        )
