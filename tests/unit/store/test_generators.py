"""Random generators: what is drawn after a restore is what would have been drawn without the break."""

import random

import numpy as np
import pytest
import torch
from tests.unit.store.conftest import ALONE

from rlhf_trainer.checkpoint.rng import (
    restore_generators,
    save_generators,
    seed_generators,
    undisturbed_generators,
)
from rlhf_trainer.ranks.ranks import Ranks


def draw() -> list[float]:
    """Odd numbers of normal deviates, of which two generators keep the second of each pair."""
    return [
        *torch.randn(3).tolist(),
        *(random.gauss(0, 1) for _ in range(3)),
        random.random(),
        *np.random.randn(3).tolist(),
        float(np.random.rand()),
    ]


def test_saved_and_restored_through_a_checkpoint(directory):
    seed_generators(ALONE, 5)
    draw()
    directory.trainer().save(1, groups={"generators": save_generators(ALONE).items()})
    expected = draw()
    seed_generators(ALONE, 99)
    assert draw() != expected
    restore_generators(ALONE, directory.snapshot(1).tensors("generators"))
    assert draw() == expected


def test_the_kept_half_of_a_pair_may_be_there_or_not():
    for before in (0, 1):
        seed_generators(ALONE, 7)
        for _ in range(before):
            random.gauss(0, 1)
            np.random.randn()
        states = save_generators(ALONE)
        expected = draw()
        restore_generators(ALONE, states)
        assert draw() == expected


@pytest.mark.parametrize("before", [0, 1])
def test_what_is_drawn_meanwhile_leaves_no_trace(before):
    """Also if torch holds the second half of a pair of normal numbers."""
    seed_generators(ALONE, 7)
    for _ in range(before):
        random.gauss(0, 1)
        np.random.randn()
    with undisturbed_generators(ALONE.device):
        expected = draw()
    assert draw() == expected


def test_seeds_differ_between_ranks_and_a_new_rank_keeps_its_own():
    seed_generators(ALONE, 5)
    first = draw()
    states = save_generators(ALONE)
    second = Ranks(1, 2, torch.device("cpu"))
    seed_generators(second, 5)
    state = torch.get_rng_state()
    restore_generators(second, states)
    assert torch.equal(torch.get_rng_state(), state)
    assert draw() != first
