"""State of every random generator (Python, NumPy, torch CPU and GPU) of every rank."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..comms.ranks import Ranks


def seed_generators(ranks: Ranks, seed: int) -> None:
    """Seeds every random generator of this rank, each rank with another seed."""
    random.seed(seed + ranks.rank)
    np.random.seed(seed + ranks.rank)
    torch.manual_seed(seed + ranks.rank)


def save_generators(ranks: Ranks) -> dict[str, Tensor]:
    """The generator states of all ranks, as `<rank>/<generator>`; a collective."""
    _version, internal, gauss = random.getstate()
    legacy: Any = np.random.get_state()
    _name, keys, position, has_gauss, cached = legacy
    mine = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(internal, dtype=torch.int64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64),
        # Both cache the second of a pair of normal deviates for the next call; NaN means an empty cache.
        "deviates": torch.tensor([math.nan if gauss is None else gauss, cached], dtype=torch.float64),
    }
    if ranks.device.type == "cuda":
        mine["cuda"] = torch.cuda.get_rng_state(ranks.device)
    return {
        f"{rank}/{key}": state
        for rank, states in enumerate(ranks.gather(mine))
        for key, state in states.items()
    }


def remember_generators(device: torch.device) -> Callable[[], None]:
    """Remembers this rank's generators as they are; returns what puts them back."""
    python, legacy, torch_cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    torch_cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(torch_cpu)
        if torch_cuda is not None:
            torch.cuda.set_rng_state(torch_cuda, device)

    return put_back


@contextmanager
def undisturbed_generators(device: torch.device) -> Iterator[None]:
    """Leaves this rank's generators as they were, whatever is drawn meanwhile, and however it ends."""
    put_back = remember_generators(device)
    try:
        yield
    finally:
        put_back()


def restore_generators(ranks: Ranks, states: dict[str, Tensor]) -> None:
    """Restores what `save_generators` returned; a rank that the snapshot lacks keeps its fresh seed."""
    mine = {key.partition("/")[2]: s for key, s in states.items() if key.startswith(f"{ranks.rank}/")}
    if not mine:
        return
    torch.set_rng_state(mine["torch"])
    gauss, cached = mine["deviates"].tolist()
    random.setstate((3, tuple(mine["python"].tolist()), None if math.isnan(gauss) else gauss))
    *keys, position, has_gauss = mine["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    if "cuda" in mine and ranks.device.type == "cuda":
        torch.cuda.set_rng_state(mine["cuda"], ranks.device)
