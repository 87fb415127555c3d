"""A base that a generator keeps, and the versions that it makes of it."""

import pytest
import torch
from tests.unit.trainer.weights.support import Adapted
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rlhf_trainer.engines.vllm.weights.held import HeldBase
from rlhf_trainer.engines.vllm.weights.served import Served


def llama() -> PreTrainedModel:
    small = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2, tie_word_embeddings=True))


def gpt2() -> PreTrainedModel:
    """Its weights are [in, out]; that of its attention's output is square."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=16))


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_base_and_an_adapter_make_the_merged_model_bit_for_bit(make, dtype, decomposed):
    torch.manual_seed(0)
    policy = Adapted(make().to(dtype), decomposed=decomposed)
    merged = {name: tensor.clone() for name, tensor in policy.named_tensors()}
    base, came = list(policy.base_tensors()), list(policy.version_tensors())
    assert len(came) == (2 + decomposed) * 2 * (7 if make is llama else 4)
    weights = HeldBase("a base", base).with_trained(came, policy.base.scale, policy.base.transposed)
    rebuilt = dict(weights.merged())
    assert list(rebuilt) == list(merged)
    assert all(torch.equal(rebuilt[name], merged[name]) for name in merged)
    assert any(not torch.equal(rebuilt[name], tensor) for name, tensor in base)


BASE = [("up", torch.ones(4, 6)), ("norm", torch.ones(4))]


def pair(name: str, out: int, rank: int, width: int) -> list[tuple[str, Tensor]]:
    return [(f"{name}.lora_A", torch.ones(rank, width)), (f"{name}.lora_B", torch.ones(out, rank))]


def test_what_is_trained_whole_takes_the_place_of_the_base_s():
    came = [*pair("up", 4, 2, 6), ("norm", torch.zeros(4)), ("head", torch.ones(2))]
    weights = HeldBase("a base", BASE).with_trained(came, 0.5, ())
    rebuilt = dict(weights.merged())
    assert list(rebuilt) == ["up", "norm", "head"]
    assert torch.equal(rebuilt["up"], torch.full((4, 6), 2.0))
    assert torch.equal(rebuilt["norm"], torch.zeros(4))
    assert torch.equal(dict(BASE)["up"], torch.ones(4, 6)), "the base stays"


@pytest.mark.parametrize(
    ("came", "says"),
    [
        (
            pair("up", 4, 2, 6)[:1],
            "low-rank update of up came without its base weights or one of its two matrices",
        ),
        (pair("up", 4, 2, 6)[1:], "update of up came without"),
        (pair("down", 4, 2, 6), "update of down came without its base"),
        ([("up.lora_magnitude", torch.ones(4))], "update of up came without"),
        ([*pair("up", 4, 2, 6), ("up.lora_magnitude", torch.ones(6))], "magnitudes of 4 outputs"),
        (pair("up", 4, 2, 5), r"the low-rank update of up has shape \[4, 5\], its base weights \[4, 6\]"),
        ([pair("up", 4, 2, 6)[0], pair("up", 4, 3, 6)[1]], "cannot be multiplied"),
    ],
)
def test_what_does_not_fit_the_base_is_refused(came, says):
    with pytest.raises(ValueError, match=says):
        HeldBase("a base", BASE).with_trained(came, 1.0, ())


def test_a_base_that_has_changed_is_told_by_the_proof_of_each_version():
    base = HeldBase("a base", [(name, weight.clone()) for name, weight in BASE])
    proof = Served(torch.nn.Linear(2, 2))
    proof.loaded(3, (), base.parts)
    assert proof.prove()
    assert proof.changed is None
    dict(base.with_trained([], 1.0, ()).plain)["norm"][0] += 1
    proof.loaded(4, (), base.parts)
    proof.prove()
    assert (
        proof.changed == "bucket 1 of the base is no longer what arrived, of which weight version 4 is made"
    )
