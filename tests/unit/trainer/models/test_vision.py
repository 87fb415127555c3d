"""Weights that read images are updated alike on all ranks, also on one whose micro-batches have none."""

import json

import pytest
from tests.support.forked.forks import run_ranks
from tests.support.tiny.vision import tiny_vision

RANKS = "tests.unit.trainer.models.on_ranks.vision_ranks"


def test_ranks_without_an_image_update_the_weights_that_read_them(tmp_path):
    policy = str(tiny_vision(tmp_path / "policy"))
    (tmp_path / "alone").mkdir()
    (alone,) = run_ranks(1, RANKS, policy, folder=tmp_path / "alone")
    with_image, without = run_ranks(2, RANKS, policy, folder=tmp_path)
    assert with_image == without
    for both, one in zip(with_image.splitlines(), alone.splitlines(), strict=True):
        norm, expected = json.loads(both)[0], json.loads(one)[0]
        assert norm == pytest.approx(expected, rel=1e-4)
