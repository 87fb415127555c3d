"""Master weights that a snapshot would save are compared with the weights with which the model computes."""

import json

import pytest
import torch
from tests.support.forked.forks import run_ranks
from tests.unit.trainer.models.on_ranks import ranks
from tests.unit.trainer.models.on_ranks.wrong_ranks import CASES, FIRST

from rlhf_trainer.checkpoint.wrong_snapshot import WrongSnapshot
from rlhf_trainer.models.live_weights import LiveWeights
from rlhf_trainer.models.state import training_state


@pytest.fixture(scope="module")
def refusals(tmp_path_factory) -> dict[str, list[str | None]]:
    """The output of each of two ranks, by case."""
    outputs = run_ranks(
        2, "tests.unit.trainer.models.on_ranks.wrong_ranks", folder=tmp_path_factory.mktemp("wrong")
    )
    lines = zip(*(map(json.loads, text.splitlines()) for text in outputs), strict=True)
    return dict(zip(CASES, map(list, lines), strict=True))


@pytest.mark.parametrize("case", [case for case in CASES if "intact" in case])
def test_a_snapshot_of_the_state_of_training_is_not_refused(refusals, case):
    assert refusals[case] == [None, None]


@pytest.mark.parametrize("case", [case for case in CASES if "round-robin" in case])
def test_tensors_that_deepspeed_takes_for_others_are_refused_on_every_rank(refusals, case):
    first, second = refusals[case]
    assert first == second
    assert "of 21 tensors are not the weights with which the model computes: " in first


@pytest.mark.parametrize("case", ["whole-1", "whole-2", "partition-3"])
def test_one_element_on_one_rank_is_refused_on_every_rank_by_name(refusals, case):
    message = f"1 of 21 tensors are not the weights with which the model computes: {FIRST}"
    assert all(refusal is not None and refusal.endswith(message) for refusal in refusals[case])


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_live_weight_that_is_not_its_master_is_refused(trained, bfloat16):
    model = trained(
        ranks.make("tied"),
        zero_optimization={"stage": 2},
        **({"bf16": {"enabled": True}} if bfloat16 else {}),
    )
    with torch.no_grad():
        model.unwrapped.get_parameter("model.norm.weight")[3] += 0.5
    with pytest.raises(WrongSnapshot, match=r"1 of 26 tensors .*: model\.norm\.weight$"):
        list(training_state(model))


@pytest.mark.usefixtures("one_rank")
def test_what_is_not_a_number_equals_itself():
    live = LiveWeights(0, 0)
    weight = torch.nn.Parameter(torch.tensor([1.0, float("nan"), float("inf")]).bfloat16())
    live.compare("same", weight, weight.detach().float())
    live.check(torch.device("cpu"))
    live.compare("other", weight, torch.tensor([float("nan"), float("nan"), float("inf")]))
    with pytest.raises(WrongSnapshot, match=r"1 of 2 tensors .*: other"):
        live.check(torch.device("cpu"))
