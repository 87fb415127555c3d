"""Weights that ZeRO-3 divides over two ranks come whole and exact to rank 0, with one message a bucket."""

import json

import pytest
from tests.support.forked.forks import run_ranks
from tests.unit.trainer.models.on_ranks import gathering_ranks
from tests.unit.trainer.models.on_ranks.gathering_ranks import BUCKETS, digest, make

CASES = {"all": 0, "all, on the CPU": 1, "adapter": 2, "adapter, on the CPU": 3}
TENSORS = len(list(make().parameters()))
MATRICES = 2 * 2 * 7
"""A and B beside the seven linear layers of each of two layers."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[list[dict]]:
    folder = tmp_path_factory.mktemp("ranks")
    return [json.loads(text) for text in run_ranks(2, gathering_ranks.__name__, folder=folder)]


@pytest.mark.parametrize("case", CASES)
def test_rank_0_gets_the_weights_that_were_divided(ranks, case):
    """An adapter changes nothing before it is trained."""
    first = ranks[0][CASES[case]]["first"]
    assert [each["digest"] for each in first] == [digest(make().named_parameters())] * len(BUCKETS)
    assert [each["tensors"] for each in first] == [TENSORS] * len(BUCKETS)


@pytest.mark.parametrize("case", CASES)
def test_rank_0_gets_the_trained_weights(ranks, case):
    case_report = ranks[0][CASES[case]]
    assert [each["digest"] for each in case_report["trained"]] == [case_report["trained_by_deepspeed"]] * len(
        BUCKETS
    )
    assert case_report["trained_by_deepspeed"] != case_report["first"][0]["digest"]


@pytest.mark.parametrize("case", CASES)
def test_a_bucket_is_one_message(ranks, case):
    travel = TENSORS + (MATRICES if "adapter" in case else 0)
    for rank, way in zip(ranks, ("c10d::recv_", "c10d::send"), strict=True):
        counts = [each["collectives"] for each in rank[CASES[case]]["first"]]
        assert counts[0] == {way: 1}
        assert counts[1].keys() == {way}
        assert 1 < counts[1][way] < travel
        assert counts[2] == {way: travel}


def test_the_other_ranks_get_none(ranks):
    assert {each["tensors"] for case_report in ranks[1] for each in case_report["first"]} == {0}
