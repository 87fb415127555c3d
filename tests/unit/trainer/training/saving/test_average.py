"""The moving average of a model's weights: by hand, swapped in and out bit for bit, and in a snapshot."""

import json

import pytest
import torch
from tests.support.forked.forks import run_ranks
from tests.unit.trainer.replay.ppo_worker import engine
from transformers import LlamaForCausalLM

from rlhf_trainer.models.average import MovingAverage
from rlhf_trainer.models.trained_model import TrainedModel


def drifted(model: TrainedModel, seed: int) -> dict[str, torch.Tensor]:
    """Other weights, as an update would leave them."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.unwrapped.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw))
    return weights(model)


def weights(model: TrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.named_tensors()}


def test_it_keeps_its_share_of_itself():
    model = engine(LlamaForCausalLM, 2, 0.001)
    average, expected = MovingAverage(model, 0.75), weights(model)
    for step in range(3):
        now = drifted(model, step)
        average.update()
        expected = {name: 0.75 * value + 0.25 * now[name] for name, value in expected.items()}
    with average.swapped():
        torch.testing.assert_close(weights(model), expected)
    restored = weights(model)
    assert all(torch.equal(restored[name], now[name]) for name in now), "its own again, bit for bit"


def test_a_snapshot_brings_it_back():
    model = engine(LlamaForCausalLM, 2, 0.001)
    average = MovingAverage(model, 0.5)
    drifted(model, 0)
    average.update()
    saved = {name: tensor.clone() for name, tensor in average.state()}
    drifted(model, 1)
    average.update()
    average.load(saved.__getitem__)
    again = dict(average.state())
    assert all(torch.equal(again[name], saved[name]) for name in saved)
    with average.swapped():
        served = weights(model)
    assert all(torch.equal(served[name], saved[name]) for name in served)


def test_divided_weights_are_swapped_whole_and_resumed(tmp_path):
    """Under ZeRO-3 ranks keep whole copies of small parameters between forward passes: here of every one, and with
    partitions on the CPU of none."""
    settings = ("1", "3", "offload")
    first, _ = run_ranks(2, "tests.unit.trainer.training.saving.average_ranks", *settings, folder=tmp_path)
    plain, *divided = (json.loads(line) for line in first.splitlines() if line.startswith("["))
    assert plain[0] != pytest.approx(plain[1], abs=0.01), "the average is not the model"
    assert len(divided) == 2
    for averaged, own, _ in divided:
        assert averaged == pytest.approx(plain[0], abs=1e-5)
        assert own == pytest.approx(plain[1], abs=1e-5)
    assert all(alike for *_, alike in (plain, *divided)), "a resumed run is the uninterrupted one"
