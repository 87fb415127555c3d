"""A model with a persistent buffer, which no gradient trains: GLM-4's router chooses experts by one."""

from pathlib import Path

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer, tiny_biased_experts
from transformers import AutoModelForCausalLM

from rlhf_trainer.export.model_files import save_model
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.tensors.records import Sequences

BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
SEQUENCES = Sequences.pack([((65, 66, 67), (68, 69)), ((70,), (71, 72, 256))])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_biased_experts(tmp_path_factory.mktemp("biased"), seed=1)


def loaded(folder: Path, dtype: torch.dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def logprobs(engine) -> torch.Tensor:
    return engine.infer(SEQUENCES, ResponseLogprobs(), SEQUENCES.response_lengths)


def step(engine) -> None:
    engine.update(SEQUENCES, ResponseLogprobs(), lambda out, _: (-out.sum(), {}), 0.01)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_trains_travels_and_is_saved_with_its_buffer(precision, folder, trained, tmp_path):
    dtype, options = getattr(torch, precision), {"bf16": {"enabled": True}} if precision != "float32" else {}
    model = loaded(folder, dtype)
    bias = model.state_dict()[BIAS].clone()
    assert bias.abs().min() > 0
    engine = trained(model, **options)
    before, first = {n: t.clone() for n, t in engine.named_tensors()}, logprobs(engine)
    step(engine)
    sent = {name: tensor.clone() for name, tensor in engine.named_tensors()}
    assert sent.keys() == loaded(folder, dtype).state_dict().keys()
    assert torch.equal(sent[BIAS].float(), bias.float())
    assert all(torch.equal(sent[n], t) == (n == BIAS) for n, t in before.items())
    now = logprobs(engine)
    assert not torch.equal(now, first)

    save_model(engine, byte_tokenizer(), tmp_path / "policy")
    again = trained(loaded(tmp_path / "policy", dtype), **options)
    assert torch.equal(dict(again.named_tensors())[BIAS].float(), bias.float())
    torch.testing.assert_close(logprobs(again), now, rtol=0, atol=0)

    saved_state = {name: tensor.clone() for name, tensor in training_state(engine)}
    resumed = trained(loaded(folder, dtype), **options)
    load_training_state(resumed, saved_state.__getitem__)
    torch.testing.assert_close(logprobs(resumed), now, rtol=0, atol=0)
