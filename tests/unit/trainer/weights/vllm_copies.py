"""Compares a swap that repeats copies, as on a GPU, with a model's own loading by vLLM, of a base and an adapter:
`vllm_copies FOLDER...`, one JSON line for each."""

import json
import sys
from pathlib import Path

import torch
from tests.unit.trainer.weights.support import load
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    init_distributed_environment,
    initialize_model_parallel,
    model_parallel_is_initialized,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model

from rlhf_trainer.engines.vllm.weights.held import HeldBase, Weights
from rlhf_trainer.engines.vllm.weights.served import Served
from rlhf_trainer.engines.vllm.weights.swap import Swap
from rlhf_trainer.weights.buckets import Bucket, pack, unpack


def received(model: torch.nn.Module) -> list[tuple[str, Tensor]]:
    """Its weights as they come out of buckets."""
    buckets = pack(model.named_parameters(), 1 << 15, torch.device("cpu"))
    return [pair for bucket in buckets for pair in unpack(Bucket(bucket.specs, bucket.data.clone()))]


def compare(folder: Path) -> None:
    arguments = EngineArgs(model=str(folder), dtype="float32", enforce_eager=True, max_model_len=64)
    config = arguments.create_engine_config()
    with set_current_vllm_config(config):
        if not model_parallel_is_initialized():
            init_distributed_environment(1, 0, f"file://{folder}/group", 0, "gloo")
            initialize_model_parallel(1, 1)
        served = initialize_model(config)
    policy = load(folder)
    swap = Swap(served, config.model_config, torch.device("cpu"))
    swap._as_loaded = True  # on a CPU vLLM packs weights, but these were not
    derived = list[torch.dtype]()
    for layer in swap._attention:
        layer.impl.process_weights_after_loading = derived.append
    with torch.no_grad():
        swap.load(Weights(received(policy)))
        watched = swap._copies
        for parameter in policy.parameters():
            parameter.normal_()
        adapter = [
            (f"{name}.{matrix}", torch.randn(shape))
            for name, weight in policy.named_parameters()
            if "_proj.weight" in name
            for matrix, shape in (("lora_A", (3, weight.shape[1])), ("lora_B", (weight.shape[0], 3)))
        ]
        weights = HeldBase("a base", received(policy)).with_trained(adapter, 0.5, ())
        swap.load(weights)
        proof = Served(served)
        proof.loaded(1, swap.arrived(weights))
        proof.prove()
        proven, parts = proof.changed is None, len(list(swap.arrived(weights)))
        proof.loaded(2, swap.arrived(Weights(weights.plain)))  # the base alone
        proof.prove()
        repeats = watched is not None and swap._copies is watched
        repeated = [parameter.clone() for parameter in served.parameters()]
        for parameter in served.parameters():
            parameter.zero_()
        served.load_weights(weights.merged())
    same = [torch.equal(mine, its) for mine, its in zip(repeated, served.parameters(), strict=True)]
    report = {"repeats": repeats, "weights": len(weights.plain), "parameters": len(same), "same": sum(same)}
    report |= {"derived again": len(derived) / len(swap._attention)}
    print(json.dumps(report | {"proven": proven, "compared": parts, "of the base": proof.changed}))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        compare(Path(argument))
