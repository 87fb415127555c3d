"""float16's dynamic loss scale: an overflow is told, and a resumed run has the scale of the uninterrupted one."""

import json
from dataclasses import replace

import pytest
import torch
from tests.support.forked.forks import run_ranks
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.models.zero import deepspeed
from rlhf_trainer.tensors.records import Sequences

SEQUENCES = Sequences.pack([((5, 6, 7), (8, 9, 10, 11)), ((12,), (13, 14)), ((15, 16), (17, 18, 19))])
SHAPE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
SCALE = {"initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 2}


@pytest.fixture
def make(trained, monkeypatch):
    """A float16 engine; torch has all of float16 on a CPU, DeepSpeed asks only for fast float16."""
    monkeypatch.setattr(deepspeed.get_accelerator(), "is_fp16_supported", lambda: True)

    def engine(stage: int, **fp16):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SHAPE))
        settings = {"enabled": True, **SCALE, **fp16}
        return trained(model, fp16=settings, zero_optimization={"stage": stage})

    return engine


def step(engine, factor: float = 1.0) -> dict[str, float]:
    return engine.update(SEQUENCES, ResponseLogprobs(), lambda out, _: (-out.sum() / 9 * factor, {}), 0.01)


def copied(engine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in training_state(engine)}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_overflow_skips_the_step_and_is_told(make, stage):
    engine = make(stage)
    before = copied(engine)
    metrics = step(engine, factor=1e30)
    assert (metrics["overflow"], metrics["grad_norm"], metrics["loss_scale"]) == (1.0, 0.0, 256.0)
    after = copied(engine)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"loss_scale"}
    metrics = step(engine)
    assert (metrics["overflow"], metrics["loss_scale"]) == (0.0, 256.0), (
        "the first overflow of two is forgiven"
    )
    assert metrics["grad_norm"] > 0
    step(engine, factor=1e30)
    assert step(engine)["loss_scale"] == 128.0


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_resumed_run_has_the_loss_scale_of_the_uninterrupted_one(make, stage):
    engine = make(stage)
    for factor in (
        1.0,
        1e30,
        1.0,
        1e30,
    ):  # the hysteresis is used up, and the next growth is three steps away
        step(engine, factor)
    saved = copied(engine)
    assert saved["loss_scale"].tolist() == [128.0, 4.0, 3.0, 1.0]
    expected = [step(engine) for _ in range(4)]
    assert [metrics["loss_scale"] for metrics in expected] == [128.0, 128.0, 128.0, 256.0]

    resumed = make(stage)
    load_training_state(resumed, saved.__getitem__)
    assert {name: tensor.tolist() for name, tensor in copied(resumed).items()} == {
        name: tensor.tolist() for name, tensor in saved.items()
    }
    assert [step(resumed) for _ in range(4)] == expected
    final = copied(engine)
    assert all(torch.equal(tensor, final[name]) for name, tensor in copied(resumed).items())


def test_an_overflow_of_one_rank_is_that_of_all(tmp_path):
    both = [
        [json.loads(line) for line in out.splitlines() if line.startswith("[")]
        for out in run_ranks(2, "tests.unit.trainer.models.on_ranks.overflow_ranks", folder=tmp_path)
    ]
    for ranks in zip(*both, strict=True):
        for first, changed, second in ranks:
            assert (first["overflow"], first["grad_norm"], first["loss_scale"]) == (1.0, 0.0, 256.0)
            assert changed == ["loss_scale"]
            assert (second["overflow"], second["loss_scale"]) == (0.0, 128.0), "counted once, not once a rank"
            assert second["grad_norm"] > 0


def gradient(engine, budget: int, monkeypatch) -> torch.Tensor:
    """Of 64 sequences of 8 tokens in micro-batches of `budget` tokens; of any scale."""
    draw = torch.Generator().manual_seed(0)
    sequences = Sequences.pack(torch.randint(50, (64, 2, 4), generator=draw).tolist())
    weights, gradients = torch.randn(256, generator=draw) / 256, []

    def instead() -> None:
        parameters = engine.unwrapped.parameters()
        gradients.extend(deepspeed.utils.safe_get_full_grad(p).flatten().double() for p in parameters)
        engine.deepspeed.optimizer.zero_grad()

    monkeypatch.setattr(engine.deepspeed, "step", instead)
    monkeypatch.setattr(engine.deepspeed, "get_global_grad_norm", lambda: 0.0)
    monkeypatch.setattr(engine.deepspeed.optimizer, "overflow", False, raising=False)
    engine._forward = replace(engine._forward, token_budget=budget)
    engine.update(
        sequences, ResponseLogprobs(), lambda out, m: ((out * weights[m.response_index]).sum(), {}), 0.0
    )
    whole = torch.cat(gradients)
    return whole / whole.norm()


def test_many_micro_batches_add_up_to_what_one_gives(make, trained, monkeypatch):
    """DeepSpeed sums them in float16, whose rounding in the forward and backward pass costs more."""
    torch.manual_seed(0)
    exact = gradient(
        trained(LlamaForCausalLM(LlamaConfig(**SHAPE)), zero_optimization={"stage": 1}), 512, monkeypatch
    )
    one, many = (
        float((gradient(make(1, initial_scale_power=16), budget, monkeypatch) - exact).norm())
        for budget in (512, 8)
    )
    assert 0 < one < 5e-3
    assert many < 2 * one


def test_a_state_of_an_earlier_release_has_none_and_loads(make):
    engine = make(1)
    step(engine)
    saved = copied(engine)
    del saved["loss_scale"]
    resumed = make(1)
    load_training_state(resumed, saved.__getitem__)
    assert step(resumed)["loss_scale"] == 256.0


def test_a_fixed_scale_is_no_state(make):
    engine = make(1, loss_scale=64)
    assert "loss_scale" not in copied(engine)
    assert step(engine)["loss_scale"] == 64.0
    assert step(engine, factor=1e30)["overflow"] == 1.0
