"""Loading by the manifest's fields: which path, which head, which dtype, and whose field an error names."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from torch import distributed
from transformers import AutoModelForTokenClassification, LlamaConfig, LlamaForCausalLM

from rlhf_api.contract.run import RunConfig
from rlhf_api.dataset.rows import AnswerRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.graph import CRITIC, POLICY, PROCESS_REWARD_MODEL, REWARD_MODEL
from rlhf_api.roles import Role
from rlhf_api.sections.lora import Lora
from rlhf_trainer.export.model_files import save_model
from rlhf_trainer.maths.outputs import token_scores
from rlhf_trainer.models.adapter import Adapter
from rlhf_trainer.models.pretrained import job_models as loading
from rlhf_trainer.models.pretrained.create import create_policy, create_tokenizer
from rlhf_trainer.models.pretrained.job_models import (
    check_reference_tokens,
    load_frozen,
    load_job_tokenizer,
    load_trained,
    trained_source,
)
from rlhf_trainer.models.pretrained.load import (
    load_policy,
    load_process_reward,
    load_reward,
    load_token_reward,
    load_tokenizer,
)
from rlhf_trainer.process import progress
from rlhf_trainer.process.settings import ModelSource, model_source
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.training import assembly

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def tokenizer():
    return create_tokenizer(["good and bad"], 270)


@pytest.fixture(scope="module")
def path(tokenizer, tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("model")
    create_policy("llama", LLAMA, tokenizer, 0).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def config(model: dict, algorithm: str = "ppo", prompt: int = 40, **spec) -> RunConfig:
    given = {
        "algorithm": algorithm,
        "steps": 1,
        "model": model,
        "data": {"train": ["rows.jsonl"], "maxPromptLength": prompt, "maxResponseLength": 24},
        "sampling": {"maxNewTokens": 24},
        "reward": {"functions": [{"function": "a:b"}]},
    }
    return RunConfig.model_validate_json(json.dumps({"job": "j", "workdir": "/w", "spec": given | spec}))


GIVEN, CREATED = {"policy": "p"}, {"create": {"modelType": "llama"}}


@pytest.mark.parametrize(
    ("model", "field", "where", "path"),
    [
        (GIVEN, "policy", "policy", "p"),
        (GIVEN, "tokenizer", "policy", "p"),
        (GIVEN, "critic", "policy", "p"),
        (GIVEN, "reference", "policy", "p"),
        (GIVEN | {"reward": "r"}, "critic", "reward", "r"),
        (GIVEN | {"reward": "r"}, "reference", "policy", "p"),
        (GIVEN | {"reward": "r", "critic": "c"}, "critic", "critic", "c"),
        (GIVEN | {"reference": "f", "tokenizer": "t"}, "reference", "reference", "f"),
        (GIVEN | {"reference": "f", "tokenizer": "t"}, "tokenizer", "tokenizer", "t"),
        (CREATED, "policy", "create", "/w/initial"),
        (CREATED, "critic", "create", "/w/initial"),
        (CREATED, "tokenizer", "create", "/w/initial"),
        (CREATED | {"reward": "r"}, "critic", "reward", "r"),
    ],
)
def test_a_field_that_is_not_given_starts_from_another(model, field, where, path):
    assert model_source(config(model), field) == ModelSource(f"spec.model.{where}", path)


@pytest.mark.parametrize(
    "reward", [{"fineGrained": True}, {"fineGrained": True, "stepScores": "each"}, {"stepScores": "min"}]
)
def test_a_critic_starts_from_no_model_that_scores_tokens_or_steps(reward):
    """Its head would give log-odds of a step, or the reward of a token, as the value of all that is to come."""
    parts = config(GIVEN | {"reward": "r"}, reward=reward)
    assert model_source(parts, "critic") == ModelSource("spec.model.policy", "p")
    named = config(GIVEN | {"reward": "r", "critic": "c"}, reward=reward)
    assert model_source(named, "critic") == ModelSource("spec.model.critic", "c")


@pytest.mark.parametrize(
    ("used", "kind"),
    [
        (POLICY, "LlamaForCausalLM"),
        (CRITIC, "LlamaForTokenClassification"),
        (REWARD_MODEL, "LlamaForSequenceClassification"),
        (PROCESS_REWARD_MODEL, "LlamaForTokenClassification"),
    ],
)
def test_each_trained_model_has_the_head_of_its_graph(tokenizer, path, used, kind):
    assert type(load_trained(config({"policy": path}), used, tokenizer)).__name__ == kind


@pytest.mark.parametrize(
    ("role", "kind"),
    [(Role.REFERENCE, "LlamaForCausalLM"), (Role.REWARD, "LlamaForSequenceClassification")],
)
def test_each_frozen_model_has_the_head_of_its_role(tokenizer, path, role, kind, tmp_path):
    load_reward(path, torch.float32).save_pretrained(tmp_path)
    made = config({"policy": path, "reward": str(tmp_path)})
    assert type(load_frozen(made, role, tokenizer)).__name__ == kind


def test_a_process_reward_model_is_trained_from_a_policy_and_loaded_by_transformers(
    path, trained, tokenizer, tmp_path
):
    """Its head begins small and the same on every rank, and is saved with what was trained."""
    one, again = (load_process_reward(path, torch.float32) for _ in range(2))
    assert torch.equal(one.score.weight, again.score.weight)
    assert 0 < one.score.weight.abs().max() < 0.2
    engine = trained(one)
    sequences = Sequences.pack([((1, 2), (3, 4, 5)), ((6,), (7, 8))])
    before = engine.infer(sequences, token_scores, sequences.response_lengths)
    engine.update(sequences, token_scores, lambda scores, _: (-scores.sum(), {}), 0.01)
    after = engine.infer(sequences, token_scores, sequences.response_lengths)
    assert bool((after > before).all())
    save_model(engine, tokenizer, tmp_path / "policy")
    saved = AutoModelForTokenClassification.from_pretrained(tmp_path / "policy").eval()
    assert saved.config.num_labels == 1
    logits = saved(torch.tensor([[1, 2, 3, 4, 5]])).logits[0, 2:, 0]
    torch.testing.assert_close(logits, after[:3], rtol=0, atol=1e-5)
    assert type(load_token_reward(str(tmp_path / "policy"), torch.float32)) is type(saved)


def test_a_policy_is_no_reward_model(tokenizer, path):
    with pytest.raises(
        InvalidJob, match=r"spec.model.reward: .* is LlamaForCausalLM; a reward needs a trained"
    ):
        load_frozen(config({"policy": path, "reward": path}), Role.REWARD, tokenizer)


def test_each_role_has_its_dtype(tokenizer, path):
    made = config({"policy": path, "dtype": "bfloat16"}, reference={"dtype": "float32"})
    assert load_trained(made, POLICY, tokenizer).dtype == torch.bfloat16
    assert load_frozen(made, Role.REFERENCE, tokenizer).dtype == torch.float32


def test_the_critic_may_have_a_dtype_of_its_own(tokenizer, path):
    made = config({"policy": path}, trainer={"dtype": "bfloat16", "criticDtype": "float32"})
    assert load_trained(made, POLICY, tokenizer).dtype == torch.bfloat16
    assert load_trained(made, CRITIC, tokenizer).dtype == torch.float32
    shared = config({"policy": path}, trainer={"dtype": "bfloat16"})
    assert load_trained(shared, CRITIC, tokenizer).dtype == torch.bfloat16


def test_errors_name_the_field_that_holds_the_path(tokenizer, path):
    with pytest.raises(InvalidJob, match=r"spec.model.reward: there is no directory '/none'"):
        load_trained(config({"policy": path, "reward": "/none"}), CRITIC, tokenizer)
    with pytest.raises(InvalidJob, match=r"spec.model.policy: sequences of up to 65 tokens do not fit"):
        load_frozen(config({"policy": path}, prompt=41), Role.REFERENCE, tokenizer)
    text = {"data": {"train": ["rows.jsonl"], "maxPromptLength": 40, "maxResponseLength": 26}}
    mixed = config({"policy": path}, pretraining={"data": ["text.jsonl"]}, **text)
    with pytest.raises(InvalidJob, match=r"spec.model.policy: sequences of up to 66 tokens do not fit"):
        load_trained(mixed, POLICY, tokenizer)
    load_trained(mixed, CRITIC, tokenizer)
    with pytest.raises(InvalidJob, match=r"spec.model.policy: there is no directory '/none'"):
        load_job_tokenizer(config({"policy": "/none"}))
    other = create_tokenizer(["other words altogether, of which there are many more"], 300)
    with pytest.raises(InvalidJob, match=r"spec.model.policy: the tokenizer has \d+ tokens"):
        load_trained(config({"policy": path}), POLICY, other)


@pytest.mark.parametrize("ends", [[1, 99999], 99999, -1])
def test_an_end_token_outside_the_vocabulary_is_refused_with_its_file(tokenizer, path, tmp_path, ends):
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    named = r"spec.model.policy: eos_token_id of .*/generation_config.json must be .*; got (99999|-1)"
    with pytest.raises(InvalidJob, match=named):
        load_trained(config({"policy": str(tmp_path)}), POLICY, tokenizer)


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    """A reward model whose tokens are others; more than the policy's, so that all ids have embeddings."""
    folder = tmp_path_factory.mktemp("other")
    words = ["a wholly different corpus about ships, seas and weather, with many long words"]
    create_policy("llama", LLAMA, create_tokenizer(words, 330), 0).save_pretrained(folder)
    create_tokenizer(words, 330).save_pretrained(folder)
    return str(folder)


def test_a_critic_starts_from_no_model_with_other_tokens(tokenizer, path, other):
    """It would read the policy's ids as other text."""
    policy = ModelSource("spec.model.policy", path)
    assert trained_source(config({"policy": path, "reward": other}), "critic", tokenizer) == policy
    assert trained_source(config({"policy": path, "reward": other}), "policy", tokenizer) == policy
    with pytest.raises(InvalidJob, match=r"spec.model.critic: has another tokenizer than the policy"):
        load_trained(config({"policy": path, "critic": other}), CRITIC, tokenizer)


def test_a_critic_starts_from_a_model_with_the_policys_tokens_and_more(tokenizer, path, tmp_path):
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    more = load_tokenizer(path)
    more.add_special_tokens({"pad_token": "[PAD]"})
    more.save_pretrained(tmp_path)
    source = trained_source(config({"policy": path, "reward": str(tmp_path)}), "critic", tokenizer)
    assert source == ModelSource("spec.model.reward", str(tmp_path))


def test_a_reference_with_other_tokens_is_refused(path, other, tmp_path):
    named = (
        r"spec.model.reference: has another tokenizer than the policy, .*: '.*' is token \d+ of the policy"
    )
    with pytest.raises(InvalidJob, match=named):
        check_reference_tokens(config({"policy": path, "reference": other}))
    check_reference_tokens(config({"policy": path, "reference": path}))
    check_reference_tokens(config({"policy": path}))
    bare = shutil.copytree(path, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    check_reference_tokens(config({"policy": path, "reference": str(bare)}))


def test_quantised_weights_are_not_trained(tokenizer, path, monkeypatch):
    """For example float8 weights on a GPU that computes in float8; elsewhere Transformers dequantises them."""

    def quantised(path: str, dtype: torch.dtype) -> torch.nn.Module:
        model = load_policy(path, dtype)
        model.is_quantized, model.quantization_method = True, "fp8"
        return model

    monkeypatch.setitem(loading.LOADERS, "causal", quantised)
    with pytest.raises(
        InvalidJob, match=r"spec.model.policy: .* is quantised \(fp8\), and such weights cannot be"
    ):
        load_trained(config({"policy": path}), POLICY, tokenizer)
    load_frozen(config({"policy": path}), Role.REFERENCE, tokenizer)


def test_the_generator_role_starts_without_torch():
    """vLLM's own start is what users wait for."""
    code = "import sys, rlhf_trainer.roles.generator; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


def test_each_frozen_weight_under_an_adapter_is_a_sign_of_progress():
    """Hashing the frozen weights of a model of hundred billions of parameters takes a quarter of an hour."""
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    )
    frozen, before = len(list(model.parameters())), progress.count()
    Adapter(model, Lora(rank=2), 0, "base")
    assert progress.count() - before >= frozen


def test_a_model_from_scratch_is_made_in_whole_or_not_at_all(tmp_path, monkeypatch):
    """A trainer that is killed meanwhile is started again as one that goes on, and makes it anew."""
    created = {"create": {"modelType": "llama", "config": LLAMA}}
    made = config(created, "sft", reward={}, sampling={}).model_copy(
        update={"workdir": str(tmp_path), "resume": True}
    )
    ranks, rows = Ranks(0, 1, torch.device("cpu")), [AnswerRow(prompt="good", answer="bad")]
    monkeypatch.setattr(distributed, "barrier", lambda: None)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(assembly, "create_policy", killed)
        with pytest.raises(KeyboardInterrupt):
            assembly.prepare_model(made, ranks, rows)
    assert not (tmp_path / "initial").exists()
    assembly.prepare_model(made, ranks, rows)
    assert (tmp_path / "initial" / "model.safetensors").exists()
