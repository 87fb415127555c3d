"""State of every random generator (Python, NumPy, torch CPU and GPU) of every rank, and kernels that do not add in a
random order."""

import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_api.sections.roles import Trainer

from ..ranks.ranks import Ranks


def seed_generators(ranks: Ranks, seed: int) -> None:
    """Seeds every random generator of this rank, each rank with another seed."""
    random.seed(seed + ranks.rank)
    np.random.seed(seed + ranks.rank)
    torch.manual_seed(seed + ranks.rank)


def choose_kernels(trainer: Trainer) -> None:
    """If `deterministic`, torch takes kernels whose sums have one order, from its first use of a GPU on: the backward
    passes of FlashAttention and of memory-efficient attention otherwise add with atomics, and cuBLAS in workspaces of
    several streams. Not `warn_only`, which leaves attention as it is. An operation that has no such kernel raises
    RuntimeError with its name."""
    if not trainer.deterministic:
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def save_generators(ranks: Ranks) -> dict[str, Tensor]:
    """The generator states of all ranks, as `<rank>/<generator>`; a collective."""
    return {
        f"{rank}/{key}": state
        for rank, states in enumerate(ranks.gather(_states(ranks.device)))
        for key, state in states.items()
    }


def restore_generators(ranks: Ranks, states: dict[str, Tensor]) -> None:
    """Restores what `save_generators` returned; a rank that the snapshot lacks keeps its fresh seed."""
    mine = {key.partition("/")[2]: s for key, s in states.items() if key.startswith(f"{ranks.rank}/")}
    if mine:
        _restore(ranks.device, mine)


def remember_generators(device: torch.device) -> Callable[[], None]:
    """Remembers this rank's generators as they are; returns what puts them back."""
    return partial(_restore, device, _states(device))


@contextmanager
def undisturbed_generators(device: torch.device) -> Iterator[None]:
    """Leaves this rank's generators as they were, whatever is drawn meanwhile, and however it ends."""
    put_back = remember_generators(device)
    try:
        yield
    finally:
        put_back()


def _states(device: torch.device) -> dict[str, Tensor]:
    """States of this rank's generators."""
    _version, internal, gauss = random.getstate()
    legacy: Any = np.random.get_state()
    _name, keys, position, has_gauss, cached = legacy
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(internal, dtype=torch.int64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        # Both cache the second of a pair of normal deviates for the next call; NaN means an empty cache.
        "deviates": torch.tensor([math.nan if gauss is None else gauss, cached], dtype=torch.float64),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _restore(device: torch.device, states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    gauss, cached = states["deviates"].tolist()
    random.setstate((3, tuple(states["python"].tolist()), None if math.isnan(gauss) else gauss))
    *keys, position, has_gauss = states["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
