"""Time of the host's processor that a layer takes in one micro-batch, for each `trainer.gradientCheckpointing`.

    .venv/bin/python benchmarks/trainer/host_time.py [--layers 28]

A model as deep as Qwen2.5-1.5B and so narrow that its arithmetic takes no time: what is left is Python, PyTorch's
dispatch, autograd and DeepSpeed, which on a GPU must stay ahead of the kernels. One ZeRO-1 rank and one thread, on the
CPU; kernels' launches and Liger's own Python are not in it. Prints milliseconds, the least of four rounds.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import get_args

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore
from transformers import AutoModelForCausalLM, Qwen2Config

from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import GradientCheckpointing, Trainer
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.records import Sequences

BATCHES, TOKENS, ROUNDS = 10, 16, 4


def make_model(layers: int, checkpointing: GradientCheckpointing) -> TrainedModel:
    config = Qwen2Config(
        hidden_size=32, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=64, bos_token_id=None, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    return TrainedModel(
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), Optimizer(),
        Trainer.model_validate({"gradientCheckpointing": checkpointing, "attention": "packed"}),
        deepspeed={"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}},
        micro_batch_tokens=TOKENS, pad_token_id=1,
    )  # fmt: skip


def milliseconds(call: Callable[[], object], layers: int) -> float:
    call()
    least = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        least = min(least, time.process_time() - began)
    return 1e3 * least / layers / BATCHES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=28)
    options = parser.parse_args()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    sequences = Sequences.pack([([2, 3, 4, 5], [6] * 8)] * BATCHES)  # a micro-batch holds one
    read = ResponseLogprobs()
    print("| `gradientCheckpointing` | update ms | log-probabilities ms |\n| --- | --- | --- |")
    for checkpointing in get_args(GradientCheckpointing):
        model = make_model(options.layers, checkpointing)
        times = [
            milliseconds(call, options.layers)
            for call in (
                lambda model=model: model.update(sequences, read, lambda out, _: (out.sum(), {}), 1e-6),
                lambda model=model: model.infer(sequences, read, sequences.response_lengths),
            )
        ]
        print(f"| `{checkpointing}` | {times[0]:.2f} | {times[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
