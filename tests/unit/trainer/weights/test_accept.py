import pytest
import torch
from tests.support.tiny.models import tiny_biased_experts, tiny_model
from transformers import AutoModelForCausalLM, GPT2Config

from rlhf_trainer.engines.vllm.weights.weight_check import architecture_table, check_fits, checkpoint_table
from rlhf_trainer.weights.buckets import Spec

TABLE = {
    s.name: s
    for s in (Spec("a", "float32", (2, 3)), Spec("b", "int32", (4,)), Spec("lm_head.weight", "float32", (5,)))
}
A, B, HEAD = TABLE.values()


def fits(*specs: Spec, optional: frozenset[str] = frozenset()) -> None:
    check_fits(specs, [TABLE], optional=optional)


def test_takes_the_same_tensors_in_any_order_and_any_floating_point():
    fits(HEAD, B, A)
    fits(Spec("a", "bfloat16", (2, 3)), B, HEAD)


def test_a_tied_head_may_come_or_not():
    fits(A, B, HEAD, optional=frozenset({"lm_head.weight"}))
    fits(A, B, optional=frozenset({"lm_head.weight"}))


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ((A, B), "lm_head.weight did not come"),
        ((A, B, HEAD, Spec("c", "float32", (1,))), r"c \[1\] is not in the model"),
        ((Spec("a", "float32", (3, 2)), B, HEAD), r"a has shape \[3, 2\], the model's has \[2, 3\]"),
        ((A, Spec("b", "float32", (4,)), HEAD), "b is float32, the model's is int32"),
        ((A, A, B, HEAD), "a came twice"),
    ],
)
def test_says_what_does_not_fit(specs, says):
    with pytest.raises(ValueError, match=says):
        fits(*specs)


def test_nothing_is_known_means_nothing_is_checked():
    check_fits([A], [], optional=frozenset())


@pytest.mark.parametrize("tie", [True, False])
def test_checkpoint_and_architecture_agree(tmp_path, tie):
    table = checkpoint_table(tiny_model(tmp_path, tie=tie, seed=0))
    assert ("lm_head.weight" in table) != tie
    assert all(spec.torch_dtype == torch.float32 for spec in table.values())


def test_an_architecture_names_its_parameters_as_the_trainer_does():
    table = architecture_table(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=10, n_positions=4))
    assert table["transformer.wte.weight"].shape == (10, 8)


def test_a_persistent_buffer_travels_with_the_parameters(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_biased_experts(tmp_path / "biased", seed=0))
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    table = architecture_table(model.config)
    assert bias in table
    assert bias not in dict(model.named_parameters())
    check_fits(
        [Spec.of(name, tensor) for name, tensor in model.state_dict().items()], [table], optional=frozenset()
    )
