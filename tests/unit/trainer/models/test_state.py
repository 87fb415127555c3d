"""Training state that is loaded over another one, as where a checkpoint turns out damaged in the middle."""

import pytest
import torch
from tests.unit.trainer.models.on_ranks import ranks

from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.models.trained_model import TrainedModel


def step(model: TrainedModel, update: int) -> None:
    sequences, weights = ranks.batch(update)
    model.update(sequences, ranks.reader("tied"), ranks.loss(weights), 0.01)


def state(model: TrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in training_state(model)}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_state_from_before_the_first_update_leaves_nothing_of_a_later_one(trained, stage):
    """Such states are those of a policy during critic warm-up, and of a run stopped before its first step."""
    model, fresh = (trained(ranks.make("tied"), zero_optimization={"stage": stage}) for _ in range(2))
    first = state(model)
    step(model, 0)
    load_training_state(model, first.__getitem__)
    for each in (model, fresh):
        step(each, 1)
    resumed_state, expected = state(model), state(fresh)
    assert all(torch.equal(resumed_state[name], expected[name]) for name in expected)
