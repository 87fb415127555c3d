"""Attention of families that cap scores, have sinks or windows, against the family's own eager attention."""

import ast
from pathlib import Path

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.maths.outputs import ResponseLogprobs
from rlhf_trainer.models.forward import attention
from rlhf_trainer.models.forward.inference import Forward
from rlhf_trainer.models.pretrained.load import load_policy
from rlhf_trainer.tensors.records import Sequences

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "sliding_window": 8,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "initializer_range": 0.4,  # large scores, which a cap changes
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
BOTH = {"layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "gemma2": {"attn_logit_softcapping": 0.8, "query_pre_attn_scalar": 3, "final_logit_softcapping": 5.0},
    "vaultgemma": {"attn_logit_softcapping": 0.8, "query_pre_attn_scalar": 3},
    "gpt_oss": EXPERTS | BOTH,
    "granite_swa": BOTH,
    "gemma3_text": BOTH | {"query_pre_attn_scalar": 3},
    "cohere2": BOTH,
    "olmo3": BOTH,
    "mistral": {},
}
SEQUENCES = Sequences.pack(
    [
        (list(range(2, 2 + p)), [(7 * i + 11 * r) % 59 + 2 for i in range(a)])
        for r, (p, a) in enumerate([(3, 30), (1, 1), (6, 2), (2, 17), (4, 5)])
    ]
)


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    monkeypatch.setattr(attention, "BLOCK", 2000)


def make(family: str, path: Path) -> torch.nn.Module:
    """The family's model with eager attention, in float32; saved at `path`."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**{**SHAPE, **FAMILIES[family]})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(path)
    return model.eval()


def log_probabilities_and_gradients(forward: Forward):
    values = {}
    for rows in forward.plan(SEQUENCES)[0]:
        micro = forward.build(SEQUENCES, rows)
        output = forward(micro, ResponseLogprobs())
        weights = torch.linspace(-1, 1, int(SEQUENCES.response_lengths.sum()))
        (output * weights[micro.response_index]).sum().backward()
        values |= dict(zip(micro.response_index.tolist(), output.tolist(), strict=True))
    gradients = {name: p.grad for name, p in forward.model.named_parameters() if p.grad is not None}
    return torch.tensor([values[i] for i in sorted(values)]), gradients


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_a_loaded_policy_computes_what_its_familys_eager_attention_does(family, kind, tmp_path):
    eager = make(family, tmp_path)
    expected, by_eager = log_probabilities_and_gradients(Forward(eager, 1, 0))  # each row alone
    own = load_policy(str(tmp_path), torch.float32).eval()
    forward = Forward.choose(own, 80, 0, kind)
    assert forward.packed is (kind == "packed")
    computed, gradients = log_probabilities_and_gradients(forward)
    torch.testing.assert_close(computed, expected, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == by_eager.keys()
    for name, gradient in by_eager.items():
        atol = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_generation_is_that_of_eager_attention(family, tmp_path):
    prompt, options = torch.tensor([[4, 9, 3], [0, 0, 5]]), {"max_new_tokens": 12, "do_sample": False}
    options |= {"attention_mask": (prompt != 0).long(), "eos_token_id": 60}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    expected = make(family, tmp_path).generate(prompt, **options).logits
    for kind in ("padded", "packed"):
        own = load_policy(str(tmp_path), torch.float32).eval()
        Forward.choose(own, 80, 0, kind)
        logits = own.generate(prompt, **options).logits
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [attention.sdpa_attention, attention.packed_attention])
def test_an_argument_that_would_be_ignored_is_refused(function):
    query, mask = torch.zeros(1, 4, 3, 8), torch.tensor([0, 3], dtype=torch.int32)[None, None, None]
    module = LlamaAttention(CONFIG_MAPPING["llama"](**SHAPE), 0)
    mask = mask if function is attention.packed_attention else None
    function(module, query, query[:, :2], query[:, :2], mask, temperature=None)
    with pytest.raises(InvalidJob, match="LlamaAttention gives its attention temperature, which PyTorch's"):
        function(module, query, query[:, :2], query[:, :2], mask, temperature=2.0)


def test_every_argument_that_a_language_model_gives_its_attention_is_known():
    """Transformers' own attention functions ignore what they do not know. Of the installed version."""
    known = {*attention.SCORED, *attention.APPLIED, *attention.WITHOUT_EFFECT}
    assert len(MODEL_FOR_CAUSAL_LM_MAPPING) > 100
    unknown = {}
    for path in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        source = path.read_text()
        if "ForCausalLM" in source and "attention_interface(" in source:
            given = {
                word.arg
                for call in ast.walk(ast.parse(source))
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "attention_interface"
                for word in call.keywords
                if word.arg and word.arg != "attention_mask"
            }
            if given - known:
                unknown[path.parent.name] = given - known
    sparse = {"axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"}
    # Indices of FlashMLA, None with any attention function of ours: their mask has the chosen keys.
    assert unknown == {name: {"indices"} for name in sparse}
