"""Tokens of a step's minibatches, random and balanced, and the time that ranks lose on either; no model, no GPU.

    .venv/bin/python benchmarks/trainer/minibatches.py

Steps of prompts of 64-256 tokens and responses of lognormal length: median 600, sigma 1, 32 to 8192 tokens. Means over
20 steps: the standard deviation of the minibatches' response tokens, and the fullest and the emptiest one, over their
mean; how often two responses that met in one epoch meet in the next, beside chance; and the time in which a rank waits
for the fullest micro-batch, packed, of the trainer's own plan.
"""

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor

from rlhf_trainer.tensors.batches import plan
from rlhf_trainer.updates.updates import balanced_minibatches, minibatches

STEPS, EPOCHS, BUDGET = 20, 2, 16384
CASES = ((256, 32, 4), (1024, 64, 8), (1024, 128, 8), (1000, 96, 8))
"""Responses of a step, minibatchSize, ranks."""


def lengths(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens of prompts and of responses."""
    draw = torch.Generator().manual_seed(seed)
    prompts = torch.randint(64, 257, (count,), generator=draw)
    responses = (torch.randn(count, generator=draw) + math.log(600)).exp().clamp(32, 8192)
    return prompts, responses.long()


def lost(whole: Tensor, dealt: Sequence[Tensor], ranks: int) -> float:
    """Share of a rank's time, in tokens, in which it waits for the fullest of the micro-batches beside its own."""
    together = 0
    for rows in dealt:
        own = whole[rows].tolist()
        steps = zip(*plan(own, ranks, BUDGET, packed=True), strict=True)
        together += sum(max(sum(own[row] for row in micro) for micro in step) for step in steps)
    return 1 - int(whole.sum()) / ranks / together


def met(first: Sequence[Tensor], second: Sequence[Tensor], count: int) -> float:
    """Share of the pairs of one epoch's minibatches that are pairs of the other's too."""
    pairs = [torch.zeros(count, count, dtype=torch.bool) for _ in range(2)]
    for pair, dealt in zip(pairs, (first, second), strict=True):
        for rows in dealt:
            pair[rows[:, None], rows] = True
        pair.fill_diagonal_(fill_value=False)
    return float((pairs[0] & pairs[1]).sum() / pairs[0].sum())


def main() -> None:
    print(
        "| responses | `minibatchSize` | ranks | dealt | deviation | fullest | emptiest | meet again | waiting |"
    )
    print("| --- " * 9 + "|")
    for count, size, ranks in CASES:
        for name in ("random", "balanced"):
            statistics = []
            for seed in range(STEPS):
                prompts, tokens = lengths(count, seed)
                balanced = name == "balanced"
                every = list(
                    balanced_minibatches(tokens, size, EPOCHS, seed)
                    if balanced
                    else minibatches(count, size, EPOCHS, seed)
                )
                first, second = every[: count // size], every[count // size :]
                sums = [int(tokens[rows].sum()) for rows in first]
                mean = fmean(sums)
                waits = lost(prompts + tokens, first, ranks)
                again = met(first, second, count)
                statistics.append((pstdev(sums) / mean, max(sums) / mean, min(sums) / mean, again, waits))
            spread, fullest, emptiest, again, waits = map(fmean, zip(*statistics, strict=True))
            chance = f"{again:.3f} ({(size - 1) / (count - 1):.3f})"
            print(
                f"| {count} | {size} | {ranks} | {name} | {spread:.2%} | {fullest:.3f} | {emptiest:.3f} | {chance} "
                f"| {waits:.1%} |"
            )


if __name__ == "__main__":
    main()
