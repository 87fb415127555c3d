"""Runs under torchrun: prints, as JSON, the bytes of each trained parameter that a model keeps on rank 0."""

import gc
import json
import os
import warnings

import torch
from torch import distributed
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhf_api.estimate.parameters import shape_of
from rlhf_api.estimate.shapes import adapter_parameters
from rlhf_api.sections.lora import Lora
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.records import Sequences

LORA = Lora(rank=64)
# name: (dtype, ZeRO stage, with an adapter)
CASES = {
    "bfloat16-1": ("bfloat16", 1, False),
    "bfloat16-2": ("bfloat16", 2, False),
    "bfloat16-3": ("bfloat16", 3, False),
    "float32-0": ("float32", 0, False),
    "float32-1": ("float32", 1, False),
    "adapter-1": ("bfloat16", 1, True),
    "adapter-3": ("bfloat16", 3, True),
}


def alive() -> int:
    """Bytes of all tensors, each storage once."""
    gc.collect()
    sizes = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor):
            storage = thing.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def measure_resident(dtype: str, stage: int, adapted: bool, engines: list[TrainedModel]) -> float:
    """The engines stay, so that nothing but the new one's tensors comes or goes."""
    zero = {"stage": stage, "reduce_bucket_size": 1000, "stage3_param_persistence_threshold": 0}
    settings = {"zero_optimization": zero}
    if dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
    shape = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
    config = Qwen2Config(**shape, num_attention_heads=4, num_key_value_heads=4)
    sequences = Sequences.pack([([1, 2, 3], [4, 5])] * 2)
    before = alive()
    model = Qwen2ForCausalLM(config).to(getattr(torch, dtype))
    parameters, frozen, adapter = sum(p.numel() for p in model.parameters()), 0.0, None
    if adapted:
        adapter = Adapter(model, LORA, 0, "")
        frozen = parameters * 2 / (2 if stage == 3 else 1)
        learned = sum(p.numel() for p in model.parameters() if p.requires_grad)
        parameters = adapter_parameters(LORA, shape_of(config.to_dict()))
        assert parameters == learned
    engine = TrainedModel(
        model,
        Optimizer(),
        Trainer(),
        deepspeed=settings,
        micro_batch_tokens=64,
        pad_token_id=0,
        adapter=adapter,
    )
    engines.append(engine)
    del model
    engine.update(
        sequences,
        ResponseLogprobs(),
        lambda out, _: (out.sum(), {}),
        0.0,
    )
    return (alive() - before - frozen) / parameters


def main() -> None:
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    gc.freeze()  # neither DeepSpeed, which collects garbage over and over, nor `alive` need look at what was imported
    engines: list[TrainedModel] = []
    measured = {name: measure_resident(*case, engines) for name, case in CASES.items()}
    if distributed.get_rank() == 0:
        print(json.dumps(measured), flush=True)
    distributed.barrier()
    os._exit(0)  # as the trainer role ends


if __name__ == "__main__":
    main()
