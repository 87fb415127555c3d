"""A snapshot whose tensors are those of the one before, though training has changed them, is not committed."""

import pytest
import torch

from rlhf_trainer.checkpoint import segments
from rlhf_trainer.checkpoint.wrong_snapshot import WrongSnapshot

KINDS = ("parameters", "exp_avg", "exp_avg_sq")


def state(step: int, stale: str = "") -> dict[str, torch.Tensor]:
    """Of two tensors; `stale`: a kind that is still that of step 1."""
    tensors = {"step": torch.tensor(step)}
    for i in range(2):
        for kind in KINDS:
            tensors[f"{kind}/layer.{i}"] = torch.full((20,), float(1 if kind == stale else step) + i)
    return tensors


@pytest.fixture(params=[100, 1 << 20])
def saved(directory, monkeypatch, request):
    """Saves a snapshot of two models, after so many updates of each; in many segments, or one for each model."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", request.param)
    trainer = directory.trainer()

    def save(step: int, tensors: dict[str, torch.Tensor], **updates: int) -> None:
        groups = {"policy": tensors.items(), "critic": state(1).items(), "policy_average": state(1).items()}
        trainer.saver.begin(step, {}, groups, {}, updates=updates)
        trainer.saver.finish()

    return save


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_tensors_that_stays_through_updates_is_refused(saved, directory, kind):
    saved(1, state(1), policy=1, critic=0)
    with pytest.raises(WrongSnapshot, match=f": policy/{kind} of step 2 are those of the snapshot before"):
        saved(2, state(2, stale=kind), policy=3, critic=0)
    assert directory.steps() == [1]


def test_all_of_them_are_named(saved, directory):
    saved(1, state(1), policy=1, critic=1)
    with pytest.raises(
        WrongSnapshot, match="policy/exp_avg, policy/exp_avg_sq, critic/parameters, critic/exp_avg,"
    ):
        saved(2, state(2) | {k: v for k, v in state(1).items() if "exp" in k}, policy=2, critic=2)
    assert directory.steps() == [1]


def test_what_training_did_not_change_may_stay(saved, directory):
    """Without an update, as in a critic's warm-up, with a gradient of zero or a rate of zero; a moving average."""
    saved(1, state(1), policy=1)
    saved(2, state(1), policy=1)
    saved(3, state(3), policy=2)
    assert directory.steps() == [1, 2, 3]
