"""Plugin entry point of this package in each of vLLM's processes."""

import json
import multiprocessing
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import torch

from rlhf_api.host.reaper import end_with_parent

from ...transport.tcp_store import use_everywhere
from .serve.constraints import read_begun_responses
from .serve.routed import allow_on_cpus
from .serve.watchdog import quote_causes

BACKEND = "rlhf"
READS_IMAGES = "Qwen3VLForConditionalGeneration"
"""vLLM's name of the architecture whose images come as patches, see `serve.given_images`."""


def register() -> None:
    """Entry point of `vllm.general_plugins`: vLLM calls it in each of its processes, possibly more than once.

    Registers the backend of `--weight-transfer-config '{"backend": "rlhf"}'`, the model that reads images as they are
    given, and the job's own model classes, has CPUs return routed experts and structured outputs of interrupted
    responses go on, and reports fatal errors to the host. Keeps the stores of one machine's workers on loopback. Ties
    the life of an engine to its server and of a worker to its engine, also under SIGKILL: an orphan would hold its GPU.
    Asks the kernel for AMX, where the processor has it: vLLM's attention in bfloat16 uses it unasked, which is SIGILL
    unless a large enough product of matrices came before.
    """
    quote_causes()
    use_everywhere()
    torch.cpu._init_amx()
    if (parent := multiprocessing.parent_process()) is not None:
        end_with_parent()
        if not parent.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # register_engine raises for a registered name
        WeightTransferEngineFactory.register_engine(
            BACKEND, "rlhf_trainer.engines.vllm.weights.engine", "BroadcastEngine"
        )
    from vllm.model_executor.models.registry import ModelRegistry, _LazyRegisteredModel

    # `register_model` would warn of it in each job.
    given = "rlhf_trainer.engines.vllm.serve.given_images"
    ModelRegistry.models[READS_IMAGES] = _LazyRegisteredModel(given, "Qwen3VLOfPatches")
    allow_on_cpus()
    read_begun_responses()
    if names := own_architectures(os.environ):
        from ...models.pretrained.architectures import register_served

        register_served(names)


def own_architectures(environ: Mapping[str, str]) -> list[str]:
    """`spec.model.architectures` of the job, empty outside of one; read without the contract's models, whose import
    would slow each start."""
    file = environ.get("RLHF_RUN_CONFIG")
    model = json.loads(Path(file).read_bytes())["spec"]["model"] if file else {}
    names: list[str] = model.get("architectures", [])
    return names
