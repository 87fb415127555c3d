"""Each of two ranks, with torchrun's environment: weights that ZeRO-3 divides, gathered in buckets of several sizes.
Prints one JSON line each: for each size the digest of what came, the number of tensors and the collectives."""

import json
import os
from collections import Counter
from typing import Any

import torch
from tests.unit.trainer.models.on_ranks.ranks import ADAM, LORA
from torch import distributed
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_api.sections.roles import Trainer
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models import gathering
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.weights.buckets import pack
from rlhf_trainer.weights.digest import Digest

BUCKETS = (1 << 20, 9000, 1)
"""Bytes: the whole model, less than its embedding, a tensor each."""
SEQUENCES = Sequences.pack([((5, 6, 7), (8, 9, 10)), ((12, 11), (13, 14, 15))])


def make() -> LlamaForCausalLM:
    """Two ranks do not divide the elements of most of its tensors; input and output embedding are one."""
    torch.manual_seed(0)
    shape = {"vocab_size": 301, "hidden_size": 33, "intermediate_size": 47, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 10}
    return LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=True))


def digest(tensors) -> str:
    hasher = Digest()
    for bucket in pack(tensors, 4096, torch.device("cpu")):
        hasher.update(bucket)
    return hasher.hexdigest()


def engine_of(*, lora: bool, offload: bool) -> TrainedModel:
    model = make()
    adapter = Adapter(model, LORA, 0, "base") if lora else None
    zero = {"stage": 3} | ({"offload_param": {"device": "cpu"}} if offload else {})
    options = {"deepspeed": {"zero_optimization": zero}, "micro_batch_tokens": 40, "pad_token_id": 0}
    return TrainedModel(model, ADAM, Trainer(), adapter=adapter, **options)


def gathered(engine: TrainedModel, bucket: int) -> dict[str, Any]:
    gathering.BUCKET_BYTES = bucket
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        tensors = [(name, tensor.clone()) for name, tensor in engine.named_tensors()]
    collectives = Counter(e.name for e in profiled.events() if e.name.startswith("c10d::"))
    return {"digest": digest(tensors), "tensors": len(tensors), "collectives": collectives}


def by_deepspeed(engine: TrainedModel) -> str:
    """The digest of the same weights as DeepSpeed itself gathers them."""
    with engine.gathered():
        items = engine.state_items()
        return digest(engine.adapter.merged(engine.adapter.to_merge(items)) if engine.adapter else items)


def report_case(*, lora: bool, offload: bool) -> dict[str, Any]:
    engine = engine_of(lora=lora, offload=offload)
    first = [gathered(engine, bucket) for bucket in BUCKETS]
    engine.update(SEQUENCES, ResponseLogprobs(), lambda out, _: (-out.sum(), {}), 0.01)
    # DeepSpeed keeps small parameters whole on every rank from now on.
    trained = [gathered(engine, bucket) for bucket in BUCKETS]
    return {"first": first, "trained": trained, "trained_by_deepspeed": by_deepspeed(engine)}


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    print(
        json.dumps(
            [report_case(lora=lora, offload=offload) for lora in (False, True) for offload in (False, True)]
        )
    )
    distributed.barrier()
    os._exit(0)
