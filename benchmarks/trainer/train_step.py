"""A training step: real tokens a second and the share of the GPU's matrix peak, packed and fused against padded.

    .venv/bin/python benchmarks/trainer/train_step.py [--shape 1.5b] [--sequences 128] [--only padded fused-32k ...] \
        [--profile]

Models of Qwen2.5's shapes with random weights, responses of lognormal length with a long tail (`--exactly N`: of N
tokens with their prompts), one ZeRO-1 rank unless the variant says otherwise. Each runs in processes of its own, one
after the other, and prints a JSON line for its update and its inference, with the memory that the plan has for it.
Operations are counted for real tokens alone: 6 per parameter and token of the layers, of the output layer for response
tokens only, and of attention 6 x layers x width x length^2 for causal pairs; a third of it for inference. `peak` is
what a bfloat16 matrix product of 8192^3 reaches on the same GPU in the same run. `--profile` adds how much of an update
the GPU is busy, and with which kernels.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import distributed
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, Qwen2Config

from rlhf_api.estimate.activations import Pass, backward_bytes
from rlhf_api.estimate.memory import Trained, trainer
from rlhf_api.estimate.parameters import shape_of
from rlhf_api.estimate.zero import Zero
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.sections.roles import Trainer
from rlhf_trainer.checkpoint.rng import choose_kernels
from rlhf_trainer.maths.outputs import ResponseLogprobs, response_values
from rlhf_trainer.models.forward.response_head import response_head
from rlhf_trainer.models.trained_model import TrainedModel
from rlhf_trainer.tensors.records import Sequences

SHAPES = {
    "0.5b": (896, 4864, 24, 14, 2, 151936),
    "1.5b": (1536, 8960, 28, 12, 2, 151936),
    "7b": (3584, 18944, 28, 28, 4, 152064),
    "tiny": (64, 128, 2, 4, 2, 512),
}
PADDED = {"attention": "padded", "kernels": "torch", "tokens": 16384, "whole_logits": True}
PACKED = {"attention": "packed", "kernels": "torch", "tokens": 16384}
FUSED = {"attention": "packed", "kernels": "auto", "tokens": 16384}
VARIANTS: dict[str, dict[str, Any]] = {
    "padded": PADDED,
    "packed": PACKED,
    "fused": FUSED,
    "fused-32k": {**FUSED, "tokens": 32768},
    "exact-32k": {**FUSED, "tokens": 32768, "deterministic": True},
    "selective-32k": {**FUSED, "tokens": 32768, "gradient_checkpointing": "selective"},
    "full-64k": {**FUSED, "tokens": 65536, "gradient_checkpointing": "full"},
    "critic-padded": {**PADDED, "critic": True},
    "critic-fused": {**FUSED, "critic": True},
    "offload": {**FUSED, "gradient_checkpointing": "full", "stage": 2, "offload": True},
    "zero3": {**FUSED, "gradient_checkpointing": "full", "stage": 3, "ranks": 2},
    "zero2": {**FUSED, "gradient_checkpointing": "full", "stage": 2, "ranks": 2},
    "zero2-float32-sums": {
        **FUSED,
        "gradient_checkpointing": "full",
        "stage": 2,
        "ranks": 2,
        "communication_data_type": "fp32",
    },
    "sequence-2": {**FUSED, "ranks": 2, "sequence_parallel_size": 2},
}
"""`padded` is the step as it was before sequences were packed: whole logits, the model's own layers. Those with `ranks`
take as many GPUs; the operations of all are divided by them."""
ALONE = [name for name, settings in VARIANTS.items() if not {"ranks", "offload"} & settings.keys()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="1.5b")
    parser.add_argument("--sequences", type=int, default=128)
    parser.add_argument("--longest", type=int, default=4096)
    parser.add_argument("--exactly", type=int, metavar="N")
    parser.add_argument("--tokens", type=int, help="tokens of a micro-batch, in place of the variant's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=ALONE)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--peak", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        measure(options.variant, options)
        return
    peak = matrix_peak()
    print(json.dumps({"what": "peak", "tflops": round(peak, 1)}), flush=True)
    for name in options.only:
        ranks = f"--nproc-per-node={VARIANTS[name].get('ranks', 1)}"
        torchrun = ["-m", "torch.distributed.run", "--standalone", ranks, __file__]
        subprocess.run(
            [sys.executable, *torchrun, *sys.argv[1:], "--variant", name, "--peak", str(peak)], check=False
        )


def measure(name: str, options: argparse.Namespace) -> None:
    """One variant: an update and an inference over all sequences."""
    settings = dict(VARIANTS[name])
    critic, whole = settings.pop("critic", False), settings.pop("whole_logits", False)
    ranks, stage, offload = settings.pop("ranks", 1), settings.pop("stage", 1), settings.pop("offload", False)
    sums = {key: settings.pop(key) for key in ("communication_data_type",) if key in settings}
    own = settings.pop("tokens")
    tokens = options.tokens or own
    cuda = torch.cuda.is_available()
    choose_kernels(Trainer().model_copy(update=settings))
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if cuda else "gloo")
    zero = {"stage": stage} | ({"offload_optimizer": {"device": "cpu"}} if offload else {})
    made = make_model(options.shape, critic=critic, device="cuda" if cuda else "cpu")
    model = TrainedModel(
        made, Optimizer(), Trainer().model_copy(update=settings),
        deepspeed={"bf16": {"enabled": True}, "zero_optimization": zero, **sums},
        micro_batch_tokens=tokens, pad_token_id=1,
    )  # fmt: skip
    run = Pass(tokens, 2, settings.get("gradient_checkpointing", "none"), settings["kernels"] == "auto")
    shape = shape_of(made.config.to_dict())
    assert shape is not None
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in made.parameters())
    divided = Zero(dtype="bfloat16", stage=stage, ranks=ranks, optimizer_away=offload)
    planned = trainer([Trained(parameters, divided, backward_bytes(shape, run, head=not critic))]).total
    if whole and (head := response_head(model.unwrapped)) is not None:
        head.fits = False
    sequences = drawn(options.sequences, options.longest, options.exactly, SHAPES[options.shape][-1])
    read = response_values if critic else ResponseLogprobs()
    weights = torch.randn(int(sequences.response_lengths.sum()))
    operations = tera(options.shape, sequences, critic=critic)

    norms = []

    def update() -> None:
        measured = model.update(
            sequences,
            read,
            lambda out, m: ((out * weights[m.response_index].to(out.device)).sum() / len(weights), {}),
            1e-6,
        )
        norms.append(measured["grad_norm"])

    def infer() -> None:
        model.infer(sequences, read, sequences.response_lengths)

    for what, call, count in (("update", update, operations), ("infer", infer, operations / 3)):
        seconds, memory = timed(call, options.rounds)
        measured = {
            "variant": name,
            "what": what,
            "seconds": round(seconds, 3),
            "tflops": round(count / seconds / ranks, 1),
        }
        share = {"of_peak": round(count / seconds / ranks / options.peak, 3)} if options.peak else {}
        memories = {"peak_gb": round(memory / 1e9, 1), "plan_gb": round(planned / 1e9, 1)}
        micro = len(model._forward.plan(sequences, ranks)[0])
        if model.rank == 0:
            line = {**measured, **share, **memories, "micro_batches": micro, "grad_norm": round(norms[0], 6)}
            print(json.dumps(line), flush=True)
    if options.profile and cuda:
        shares = profiled(update)
        if model.rank == 0:
            print(json.dumps({"variant": name, "what": "profile", **shares}), flush=True)
    distributed.destroy_process_group()


def timed(call: Callable[[], None], rounds: int) -> tuple[float, int]:
    """Seconds of one call after a first that is not counted, and the most memory that they took."""
    call()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(rounds):
        call()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / rounds, torch.cuda.max_memory_allocated() if cuda else 0


KINDS = {
    "attention": ("flash", "fmha", "attention"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas"),
    "loss": ("softmax", "logsumexp", "cross_entropy"),
    "optimizer": ("adam", "multi_tensor"),
    "copies": ("memcpy", "memset", "copy"),
}
"""Parts of kernels' names, in the order in which they are looked for."""


def profiled(call: Callable[[], None]) -> dict[str, Any]:
    """Share of a call's time in which the GPU is busy, its shares by kind of kernel, the ten longest kernels, and the
    longest times without any: milliseconds after the call's start, their number, the kernels before and after."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    shares = Counter[str]()
    for event in recorded.key_averages():
        shares[event.key] += event.self_device_time_total / 1e6 / seconds
    kernels = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in recorded.events()
        if event.device_type == DeviceType.CUDA
    )
    gaps = sorted(
        ((after[0] - before[1]) / 1e3, (before[1] - kernels[0][0]) / 1e3, before[2][:50], after[2][:50])
        for before, after in pairwise(kernels)
    )[:-7:-1]
    kinds = Counter[str]()
    for name, share in shares.items():
        kind = next((k for k, parts in KINDS.items() if any(p in name.lower() for p in parts)), "others")
        kinds[kind] += share
    return {
        "seconds": round(seconds, 3),
        "busy": round(sum(shares.values()), 3),
        "kinds": {kind: round(share, 3) for kind, share in kinds.most_common()},
        "longest": {name[:80]: round(share, 3) for name, share in shares.most_common(10)},
        "gaps": [[round(at, 1), round(length, 1), before, after] for length, at, before, after in gaps],
    }


def make_model(shape: str, *, critic: bool, device: str) -> Any:
    hidden, inner, layers, heads, key_heads, vocabulary = SHAPES[shape]
    config = Qwen2Config(  # type: ignore[call-arg]  # those of any configuration
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_heads, vocab_size=vocabulary, tie_word_embeddings=shape != "7b",
        max_position_embeddings=32768, rope_theta=1e6, bos_token_id=None, eos_token_id=0, pad_token_id=1,
        num_labels=1 if critic else 2,
    )  # fmt: skip
    torch.manual_seed(1)
    kind = AutoModelForTokenClassification if critic else AutoModelForCausalLM
    with torch.device(device):
        return kind.from_config(config, dtype=torch.bfloat16)


def drawn(count: int, longest: int, exactly: int | None, vocabulary: int) -> Sequences:
    """Prompts of 64-256 tokens, responses of lognormal length: median 600, 32 at least, `longest` at most; or such that
    both together have `exactly` so many."""
    dice = random.Random(1)
    pairs = []
    for _ in range(count):
        prompt, response = dice.randint(64, 256), int(math.exp(dice.gauss(math.log(600), 0.8)))
        lengths = (prompt, exactly - prompt if exactly else min(longest, max(32, response)))
        pairs.append(tuple([dice.randrange(2, vocabulary) for _ in range(length)] for length in lengths))
    return Sequences.pack(pairs)


def tera(shape: str, sequences: Sequences, *, critic: bool) -> float:
    """Floating-point operations of an update, in 10^12."""
    hidden, inner, layers, heads, key_heads, vocabulary = SHAPES[shape]
    body = layers * (2 * hidden * hidden + 2 * hidden * hidden * key_heads // heads + 3 * hidden * inner)
    attention = 6 * layers * hidden * float((sequences.lengths.double() ** 2).sum())
    head = 0 if critic else 6 * vocabulary * hidden * int(sequences.response_lengths.sum())
    return (6 * body * int(sequences.lengths.sum()) + attention + head) / 1e12


def matrix_peak() -> float:
    """TFLOP/s of a bfloat16 product, 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds, _ = timed(lambda: [a @ b for _ in range(20)] and None, 3)
    return 20 * 2 * 8192**3 / seconds / 1e12


if __name__ == "__main__":
    main()
