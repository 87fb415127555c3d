"""Routers whose choice of experts is given, with the family's own code for all else."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def choosing(choices: torch.Tensor | None) -> Iterator[None]:
    """Has `torch.topk` choose these of four experts, layer by layer [T, L, K]."""
    if choices is None:
        yield
        return
    topk, layers = torch.topk, itertools.cycle(choices.long().unbind(1))

    def forced(values, k, *args, **named):
        if values.shape[-1] != 4:
            return topk(values, k, *args, **named)
        chosen = next(layers)
        return values.gather(-1, chosen), chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "topk", forced)
        patch.setattr(torch.Tensor, "topk", forced)
        yield
