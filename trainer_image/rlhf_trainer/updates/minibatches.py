"""Rows of each update: random minibatches, or minibatches of equally many tokens; the same on every rank."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rlhf_api.graph import minibatch_count


def minibatches(count: int, size: int, epochs: int, seed: int) -> Iterator[Tensor]:
    """Rows of each minibatch, `epochs` times over all rows, shuffled by `seed`; their numbers differ by one at most."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(count, generator=generator).tensor_split(minibatch_count(count, size))


def balanced_minibatches(tokens: Tensor, size: int, epochs: int, seed: int) -> Iterator[Tensor]:
    """As many minibatches as `minibatches` makes, whose rows differ by one at most and whose tokens by little.

    `tokens` int64 [N]: of each row. Longest-processing-time scheduling with a bound on rows (Graham 1969, "Bounds on
    multiprocessing timing anomalies"): rows in layers of one for each minibatch, long ones first; within a layer the
    longest goes to the minibatch with the fewest tokens so far. Lengths are blurred by a random factor of 0.5 to 1.5
    when layers are cut, without which every epoch would deal the same sets; so any two rows meet as often as by chance.
    """
    generator = torch.Generator().manual_seed(seed)
    count = minibatch_count(len(tokens), size)
    for _ in range(epochs):
        blurred = tokens * (0.5 + torch.rand(len(tokens), generator=generator))
        owner, sums = torch.empty_like(tokens), torch.zeros(count, dtype=torch.int64)
        for layer in blurred.argsort(descending=True, stable=True).split(count):
            longest_first = layer[tokens[layer].argsort(descending=True, stable=True)]
            emptiest = sums.argsort(stable=True)[: len(layer)]
            owner[longest_first] = emptiest
            sums[emptiest] += tokens[longest_first]
        dealt = owner.argsort(stable=True).split(owner.bincount(minlength=count).tolist())
        for i in torch.randperm(count, generator=generator).tolist():
            yield dealt[i]
