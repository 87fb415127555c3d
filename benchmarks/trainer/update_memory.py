"""Bytes of each parameter that an update takes beside what the model keeps, and those of the plan.

    .venv/bin/python benchmarks/trainer/update_memory.py [--ranks 2] [--only bfloat16-1 ...]

A model of Qwen2.5's kind with random weights, whose two micro-batches have 8 tokens each: activations are negligible,
and so are ZeRO's buckets by default. At stage 2 of bfloat16 use `--layers 12 --bucket 500000000`: tensors that are
larger than the bucket stay until the step. One JSON line for each dtype, ZeRO stage and optimizer, with the memory that
torch allocated on rank 0 in the second update, beside what was there before it: the most in the backward passes, and in
the optimizer's step. `plan` is what `rlhf plan` counts for the two, besides stage 2's bucket and the weights that stage
3 gathers.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.zero import Zero, reducing, stepping
from rlhf_api.manifest.load import parse
from rlhf_api.spec import Spec
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.records import Sequences

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "default": {},
    "torch_adam": {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}},
    "AdamW": {"optimizer": {"type": "AdamW"}},
    "offload": {},
}
"""`default` is torch's AdamW as the trainer makes it, `AdamW` the one that DeepSpeed compiles."""
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
HALF = {"bfloat16": "bf16", "float16": "fp16"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", nargs="*", metavar="DTYPE-STAGE", help="such as bfloat16-1; all by default")
    parser.add_argument("--optimizers", nargs="*", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--bucket", type=int, default=1_000_000, help="elements; DeepSpeed's default is 5e8")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        ranks = f"--nproc-per-node={options.ranks}"
        torchrun = ["-m", "torch.distributed.run", "--standalone", ranks, __file__]
        sys.exit(subprocess.run([sys.executable, *torchrun, *sys.argv[1:]], check=False).returncode)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl")
    for name, config in cases(options.optimizers, options.bucket):
        if not options.only or any(name.startswith(f"{case}-") for case in options.only):
            measure(name, config, options.hidden, options.layers)
    distributed.destroy_process_group()


def cases(optimizers: list[str], bucket: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names, and DeepSpeed's configurations."""
    for dtype in ("bfloat16", "float16", "float32"):
        for stage in range(1 if dtype in HALF else 0, 4):
            for optimizer in optimizers:
                zero: dict[str, Any] = {"stage": stage, **dict.fromkeys(BUCKETS, bucket)}
                if optimizer == "offload":
                    if not stage:
                        continue
                    zero["offload_optimizer"] = {"device": "cpu"}
                half = {HALF[dtype]: {"enabled": True}} if dtype in HALF else {}
                if dtype == "float16":
                    half["fp16"]["initial_scale_power"] = 4  # no step overflows
                yield (
                    f"{dtype}-{stage}-{optimizer}",
                    {"zero_optimization": zero, **half, **OPTIMIZERS[optimizer]},
                )


def measure(name: str, config: dict[str, Any], hidden: int, layers: int) -> None:
    dtype, ranks = name.partition("-")[0], distributed.get_world_size()
    spec = parsed(dtype, ranks, config)
    made = make_model(hidden, layers, dtype)
    parameters = sum(p.numel() for p in made.parameters())
    try:
        model = TrainedModel(
            made, spec.optimizer, spec.trainer, deepspeed=config, micro_batch_tokens=8, pad_token_id=1
        )
    except InvalidJob as error:
        print(json.dumps({"case": name, "refused": str(error)}), flush=True)
        return
    del made
    sequences = Sequences.pack([([2, 3, 4, 5], [6, 7, 8, 9])] * (2 * ranks))
    peaks: dict[str, float] = {}
    step = model.deepspeed.step

    def watched() -> None:
        peaks["backward"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()

    model.deepspeed.step = watched
    for _ in range(2):
        gc.collect()
        began = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        metrics = model.update(sequences, ResponseLogprobs(), lambda out, _: (out.sum() / 100, {}), 1e-6)
        assert not metrics.get("overflow"), "a step that is skipped takes less"
        peaks["step"] = torch.cuda.max_memory_allocated()
    zero = Zero.of(spec, "policy")
    plan = [share(zero).bytes(ranks) for share in (reducing, stepping)]
    if distributed.get_rank() == 0:
        each = {when: round((peak - began) / parameters, 2) for when, peak in peaks.items()}
        print(json.dumps({"case": name, "ranks": ranks, **each, "plan": plan}), flush=True)
    model.deepspeed.destroy()


def parsed(dtype: str, ranks: int, config: dict[str, Any]) -> Spec:
    return parse(
        {
            "apiVersion": "rlhf.dev/v1alpha1",
            "kind": "RLHFJob",
            "metadata": {"name": "memory"},
            "spec": {
                "algorithm": "grpo",
                "steps": 1,
                "model": {"policy": "some/model"},
                "data": {"train": ["prompts.jsonl"]},
                "sampling": {"responsesPerPrompt": 8},
                "reward": {"functions": [{"function": "rewards:correct"}]},
                "trainer": {"processesPerReplica": ranks, "dtype": dtype, "deepspeed": config},
            },
        }
    ).spec


def make_model(hidden: int, layers: int, dtype: str) -> PreTrainedModel:
    """0.6e9 parameters by default: more than DeepSpeed sums at once."""
    config = Qwen2Config(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers, vocab_size=512,
        num_attention_heads=16, num_key_value_heads=16, bos_token_id=None, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    torch.manual_seed(1)
    with torch.device("cuda"):
        return Qwen2ForCausalLM._from_config(config, dtype=getattr(torch, dtype))


if __name__ == "__main__":
    main()
