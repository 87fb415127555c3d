"""Cost of merging an adapter in a swap: the copies of whole weights into a model, and of weights merged for them.

    .venv/bin/python benchmarks/generators/merge.py [--model qwen2.5-7b] [--ranks 16 64]

With the worker's own code and memory, a model in place of vLLM's, and no server: the engine is not waited for. Also the
proof that what serves is what arrived. Prints one JSON line for each figure.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from serving import SHAPES
from torch import nn

from rlhf_trainer.engines.vllm.weights.copy_plan import Copies, Named
from rlhf_trainer.engines.vllm.weights.held import HeldBase, Weights
from rlhf_trainer.engines.vllm.weights.served import Served
from rlhf_trainer.maths.low_rank import A, B
from rlhf_trainer.weights.buckets import Bucket, pack, unpack

ROUNDS = 5


class Fused(nn.Module):
    """A decoder's matrices as vLLM holds them: queries, keys and values in one, gate and up in one."""

    def __init__(self, shape: str, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, inner, layers, heads, key_heads, vocabulary, tied = SHAPES[shape]
        keys = hidden // heads * key_heads
        self.parts: dict[str, list[tuple[str, int, int]]] = {"embed": [("embed", vocabulary, hidden)]}
        if not tied:
            self.parts["head"] = [("head", vocabulary, hidden)]
        for i in range(layers):
            wide = [(f"{i}.{n}_proj", out, hidden) for n, out in (("q", hidden), ("k", keys), ("v", keys))]
            gated = [(f"{i}.{n}_proj", inner, hidden) for n in ("gate", "up")]
            ends = {
                f"{i}.o": [(f"{i}.o_proj", hidden, hidden)],
                f"{i}.d": [(f"{i}.down_proj", hidden, inner)],
            }
            self.parts |= {f"{i}.qkv": wide, f"{i}.gate_up": gated, **ends}
        self.held = {
            name: nn.Parameter(
                torch.empty(sum(out for _, out, _ in parts), parts[0][2], device=device, dtype=dtype)
            )
            for name, parts in self.parts.items()
        }
        for number, parameter in enumerate(self.held.values()):
            self.register_parameter(str(number), parameter)

    def load(self, weights: Named) -> set[str]:
        given = dict(weights)
        for name, parts in self.parts.items():
            sizes = [out for _, out, _ in parts]
            for (part, _, _), into in zip(parts, self.held[name].data.split(sizes), strict=True):
                into.copy_(given[part])
        return set(self.held)

    def random(self) -> Named:
        """Weights as they come out of buckets."""
        device, dtype = self.held["embed"].device, self.held["embed"].dtype
        made = (
            (name, torch.randn(out, width, device=device, dtype=dtype).mul_(0.02))
            for parts in self.parts.values()
            for name, out, width in parts
        )
        return _received(made, device)

    def adapter(self, rank: int) -> Named:
        device, dtype = self.held["embed"].device, self.held["embed"].dtype
        made = (
            (f"{name}{end}", torch.randn(shape, device=device, dtype=dtype).mul_(0.02))
            for parts in self.parts.values()
            for name, out, width in parts
            if name.endswith("_proj")
            for end, shape in ((A, (rank, width)), (B, (out, rank)))
        )
        return _received(made, device)


def _received(tensors: object, device: torch.device) -> Named:
    buckets = (Bucket(b.specs, b.data.clone()) for b in pack(tensors, 512 << 20, device))  # type: ignore[arg-type]
    return [pair for bucket in buckets for pair in unpack(bucket)]


def seconds(work: Callable[[], object], device: torch.device) -> list[float]:
    durations = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        durations.append(time.monotonic() - began)
    return sorted(durations)


@torch.no_grad()
def measure(shape: str, ranks: list[int], device: torch.device) -> None:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Fused(shape, device, dtype)
    base = HeldBase("a base", model.random())
    whole = base.with_trained([], 1.0, ())
    _, copies = Copies.watch(model, whole.plain, model.load)
    assert copies is not None
    assert copies.whole

    def swap(weights: Weights) -> None:
        copies.repeat(weights.merged())

    def prove(weights: Weights) -> None:
        proof = Served(model)
        proof.loaded(1, copies.pairs(weights.merged()), base.parts)
        proof.prove()
        assert proof.changed is None, proof.changed

    tell(shape, "swap of whole weights", seconds(lambda: swap(whole), device), whole.plain)
    tell(shape, "proof of whole weights", seconds(lambda: prove(whole), device), whole.plain)
    for rank in ranks:
        came = model.adapter(rank)
        weights = base.with_trained(came, 2.0, ())
        tell(shape, f"swap, merging rank {rank}", seconds(lambda w=weights: swap(w), device), came)
        tell(shape, f"proof, merging rank {rank}", seconds(lambda w=weights: prove(w), device), came)
    if device.type == "cuda":
        peak, held = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        print(json.dumps({"what": "memory", "peak": peak, "model, base and adapter": held}), flush=True)


def tell(shape: str, what: str, durations: list[float], came: Named) -> None:
    nbytes = sum(tensor.nbytes for _, tensor in came)
    times = {
        "least": round(durations[0], 4),
        "median": round(durations[len(durations) // 2], 4),
        "most": round(durations[-1], 4),
    }
    print(json.dumps({"model": shape, "what": what, "bytes received": nbytes, **times}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="qwen2.5-7b", choices=SHAPES)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    options = parser.parse_args()
    measure(options.model, options.ranks, torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))
