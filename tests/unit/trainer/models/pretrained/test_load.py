"""Models and tokenizers: from scratch, from disk, from each other, and what is wrong with them said plainly."""

import copy
import json
import os
import shutil
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tests.support.rlhf import ROOT
from tests.support.tiny.models import tiny_model
from transformers import AutoConfig, Gemma3PreTrainedModel, Gemma3TextConfig, PreTrainedTokenizerFast
from transformers.modeling_layers import GenericForTokenClassification

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.optimizer import Optimizer
from rlhf_trainer.engines.vllm.serve.launch import places_images
from rlhf_trainer.export.model_files import save_model
from rlhf_trainer.maths.outputs import response_values, sequence_scores
from rlhf_trainer.models.deepspeed_config import deepspeed_settings
from rlhf_trainer.models.forward.inference import Forward, infer
from rlhf_trainer.models.initialize import initialize, missing_tools
from rlhf_trainer.models.pretrained.create import create_policy, create_tokenizer
from rlhf_trainer.models.pretrained.load import (
    check_fit,
    load_critic,
    load_policy,
    load_reward,
    load_scorer,
    load_tokenizer,
    padding_id,
)
from rlhf_trainer.models.state import load_training_state, training_state
from rlhf_trainer.process import progress
from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.records import Sequences

TEXTS = ["the film was good", "the film was bad", "a good film, a bad film"] * 4
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
SEQUENCES = Sequences.pack([([5, 9, 11], [20, 3]), ([7], [8, 9, 100, 4]), ([30, 31], [2])])


@pytest.fixture(scope="module")
def tokenizer():
    return create_tokenizer(TEXTS, 280)


@pytest.fixture(scope="module", params=["qwen2", "gpt2"])  # their heads have different names
def path(request, tokenizer, tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp(request.param)
    create_policy(
        request.param, SMALL if request.param == "qwen2" else GPT2, tokenizer, seed=0
    ).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("text", ["the film was good", "naïve ☃ 𝛌\n\ttabs", "", " spaces  kept "])
def test_any_text_comes_back_from_a_new_tokenizer(tokenizer, tmp_path, text):
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, load_tokenizer(str(tmp_path))):
        assert one.decode(one(text).input_ids) == text
        assert len(one) <= 280
        assert one.pad_token_id != one.eos_token_id
        assert not {one.pad_token_id, one.eos_token_id} & set(one(text).input_ids)
        assert one("<eos>").input_ids == [one.eos_token_id]
    assert len(tokenizer("the film was good").input_ids) < len("the film was good")
    assert create_tokenizer(TEXTS, 280).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    "family",
    ["gemma3_text", "vaultgemma", "olmo2", "granite", "cohere2", "opt", "gpt_neox_japanese"],
)
def test_a_family_without_classes_for_rewards_and_values_has_ours(family, tokenizer, tmp_path):
    """One output of the family's own last hidden states, and files from which the same model is loaded again."""
    sizes = {"ffn_dim": 48, "word_embed_proj_dim": 32, "head_dim": 8, "intermediate_multiple_size": 2}
    policy = create_policy(family, SMALL | sizes, tokenizer, seed=0).eval()
    policy.save_pretrained(tmp_path / "policy")
    states = []
    policy.get_output_embeddings().register_forward_pre_hook(
        lambda _, given: states.append(given[0].detach())
    )
    micro = MicroBatch.build(SEQUENCES, [0, 1, 2], 0)
    Forward(policy, 100, 0).logits(micro)
    (hidden,) = states
    for load, kind, read in (
        (load_critic, "ForTokenClassification", response_values),
        (load_reward, "ForSequenceClassification", sequence_scores),
    ):
        model = load(str(tmp_path / "policy"), torch.float32).eval()
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(tmp_path / kind)
        assert AutoConfig.from_pretrained(tmp_path / kind).architectures[0].endswith(kind)
        again = (load_critic if load is load_critic else load_scorer)(str(tmp_path / kind), torch.float32)
        assert {n: t.tolist() for n, t in again.state_dict().items()} == {
            n: t.tolist() for n, t in model.state_dict().items()
        }
        outputs = model.score(hidden)
        if load is load_reward:
            outputs = outputs[torch.arange(3), SEQUENCES.lengths - 1]
        computed = read(Forward(again.eval(), 100, 0).logits(micro), micro)
        torch.testing.assert_close(computed, read(outputs, micro), rtol=1e-4, atol=1e-5)


def test_a_critic_with_our_head_is_trained_exported_and_resumed_exactly(tokenizer, tmp_path, trained):
    create_policy("gemma3_text", SMALL | {"head_dim": 8}, tokenizer, seed=0).save_pretrained(
        tmp_path / "policy"
    )

    def critic():
        return trained(load_critic(str(tmp_path / "policy"), torch.float32))

    def update(model):
        return model.update(
            SEQUENCES, response_values, lambda out, _: (out.sum() - out.square().sum(), {}), 0.01
        )

    model, other = critic(), critic()
    update(model)
    saved = {name: tensor.clone() for name, tensor in training_state(model)}
    assert saved["exp_avg/score.weight"].any()
    load_training_state(other, saved.__getitem__)
    assert update(model) == update(other)
    for name, tensor in training_state(other):
        assert torch.equal(tensor, dict(training_state(model))[name]), name
    save_model(model, tokenizer, tmp_path / "critic")
    exported = load_critic(str(tmp_path / "critic"), torch.float32).eval()
    sizes = SEQUENCES.response_lengths
    values = model.infer(SEQUENCES, response_values, sizes)
    assert values.any()
    torch.testing.assert_close(
        infer(Forward(exported, 64, 0), SEQUENCES, response_values, sizes), values, rtol=0, atol=1e-6
    )
    declared = documented_class().from_pretrained(tmp_path / "critic").eval()
    computed = infer(Forward(declared, 64, 0), SEQUENCES, response_values, sizes)
    torch.testing.assert_close(computed, values, rtol=0, atol=1e-6)


def documented_class() -> type:
    """The class that docs/guides/models/own-model.md declares for Transformers alone."""
    text = Path("docs/guides/models/own-model.md").read_text()
    names = {
        "GenericForTokenClassification": GenericForTokenClassification,
        "Gemma3PreTrainedModel": Gemma3PreTrainedModel,
        "Gemma3TextConfig": Gemma3TextConfig,
    }
    exec(text[text.index("class Gemma3ForTokenClassification") :].split("```")[0], names)
    return names["Gemma3ForTokenClassification"]


def test_a_new_policy_depends_on_the_seed_alone(tokenizer):
    torch.manual_seed(1)
    one, two, other = (create_policy("qwen2", SMALL, tokenizer, seed).state_dict() for seed in (3, 3, 4))
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(one[name], two[name])
    assert not torch.equal(one[name], other[name])


def test_the_values_of_a_fresh_critic_start_at_zero(path):
    sizes = SEQUENCES.response_lengths
    critic = load_critic(path, torch.float32).eval()
    output = infer(Forward(critic, 20, 1), SEQUENCES, response_values, sizes)
    assert torch.equal(output, torch.zeros(int(sizes.sum())))


def test_a_fresh_reward_model_is_the_same_on_every_rank(path):
    sizes = torch.ones_like(SEQUENCES.response_lengths)
    scores = []
    for rank in range(2):
        torch.manual_seed(rank)
        model = load_reward(path, torch.float32).eval()
        scores.append(infer(Forward(model, 20, 1), SEQUENCES, sequence_scores, sizes))
    assert torch.equal(*scores)
    assert 0 < scores[0].abs().max() < 1


def test_a_critic_takes_over_the_head_of_a_reward_model_and_loads_again(path, tmp_path):
    reward = load_reward(path, torch.float32)
    torch.nn.init.normal_(reward.score.weight)
    reward.save_pretrained(tmp_path / "reward")
    critic = load_critic(str(tmp_path / "reward"), torch.float32)
    critic.save_pretrained(tmp_path / "critic")
    ones = torch.ones(3, dtype=torch.int64)
    model = load_reward(str(tmp_path / "reward"), torch.float32).eval()
    scores = infer(Forward(model, 20, 1), SEQUENCES, sequence_scores, ones)
    assert scores.abs().min() > 1e-3
    for model in (critic, load_critic(str(tmp_path / "critic"), torch.float32)):
        model.eval()

        def last(logits, micro: MicroBatch):
            return logits[torch.arange(len(micro.rows)), micro.attention_mask.sum(1) - 1, 0]

        torch.testing.assert_close(infer(Forward(model, 20, 1), SEQUENCES, last, ones), scores)


def test_a_policy_loads_in_the_type_asked_for(path):
    assert load_policy(path, torch.bfloat16).dtype == torch.bfloat16
    assert load_policy(path, torch.float32).dtype == torch.float32


def test_each_parameter_that_is_made_and_filled_is_a_sign_of_progress(path):
    before = progress.count()
    parameters = len(list(load_policy(path, torch.float32).parameters()))
    assert progress.count() - before >= 2 * parameters


def test_a_tokenizer_without_padding_pads_with_its_end(tokenizer, tmp_path):
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<eos>")
    bare.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.pad_token_id is None
    assert padding_id(loaded) == loaded.eos_token_id == tokenizer.eos_token_id
    assert padding_id(tokenizer) == tokenizer.pad_token_id


def without(path: str, folder: Path, *names: str) -> str:
    """A copy of the model, whose file lacks these weights."""
    shutil.copytree(path, folder)
    weights = load_file(folder / "model.safetensors")
    remaining = {name: tensor for name, tensor in weights.items() if name not in names}
    save_file(remaining, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_a_model_whose_files_lack_weights_is_refused_and_not_filled_with_random_ones(tmp_path):
    path = str(tiny_model(tmp_path / "whole", tie=False, seed=0))
    norm = without(path, tmp_path / "norm", "model.norm.weight")
    for load in (load_policy, load_reward, load_critic):
        with pytest.raises(ValueError, match=r"norm' lacks weights of LlamaFor\w+: model.norm.weight"):
            load(norm, torch.float32)
    head = without(path, tmp_path / "head", "lm_head.weight")
    with pytest.raises(ValueError, match=r"lacks weights of LlamaForCausalLM: lm_head.weight"):
        load_policy(head, torch.float32)
    for load in (load_reward, load_critic):
        load(head, torch.float32)  # which have a head of their own


def test_a_reward_that_scores_has_a_trained_head_and_no_random_one(path, tmp_path):
    with pytest.raises(ValueError, match=r"is \w+; a reward needs a trained sequence-classification model"):
        load_scorer(path, torch.float32)
    trained = load_reward(path, torch.float32)
    trained.save_pretrained(tmp_path / "reward")
    loaded = load_scorer(str(tmp_path / "reward"), torch.float32)
    assert torch.equal(loaded.score.weight, trained.score.weight)
    bare = without(str(tmp_path / "reward"), tmp_path / "bare", "score.weight")
    for load in (load_scorer, load_reward, load_critic):
        with pytest.raises(
            ValueError, match=r"bare' lacks weights of \w+: score.weight; they would be random"
        ):
            load(bare, torch.float32)
    load_critic(path, torch.float32).save_pretrained(tmp_path / "critic")
    bare = without(str(tmp_path / "critic"), tmp_path / "valueless", "score.weight", "classifier.weight")
    with pytest.raises(
        ValueError, match=r"lacks weights of \w+ForTokenClassification: (score|classifier).weight"
    ):
        load_critic(bare, torch.float32)


@pytest.mark.parametrize("tie", [True, False])
def test_a_reward_model_is_no_policy(tie, tmp_path):
    """With tied embeddings its files hold every weight that a policy needs."""
    path = str(tiny_model(tmp_path / "policy", tie=tie, seed=0))
    load_reward(path, torch.float32).save_pretrained(tmp_path / "reward")
    with pytest.raises(
        ValueError, match=r"is \w+ForSequenceClassification; a policy or reference is a causal"
    ):
        load_policy(str(tmp_path / "reward"), torch.float32)


def test_what_is_wrong_is_said_plainly(path, tokenizer, tmp_path):
    for load in (load_policy, load_reward, load_critic):
        with pytest.raises(ValueError, match="no directory '/nowhere'"):
            load("/nowhere", torch.float32)
        with pytest.raises(ValueError, match=r"cannot load .*config\.json"):
            load(str(tmp_path), torch.float32)
    endless = PreTrainedTokenizerFast(tokenizer_object=copy.deepcopy(tokenizer.backend_tokenizer))
    endless.save_pretrained(tmp_path / "endless")
    with pytest.raises(ValueError, match="no end-of-sequence token"):
        load_tokenizer(str(tmp_path / "endless"))
    config = AutoConfig.from_pretrained(path)
    check_fit(config, tokenizer, 64)
    with pytest.raises(ValueError, match="65 tokens do not fit a model with 64 positions"):
        check_fit(config, tokenizer, 65)
    config.vocab_size = len(tokenizer) - 1
    with pytest.raises(ValueError, match=f"{len(tokenizer)} tokens but the model has embeddings for"):
        check_fit(config, tokenizer, 64)
    with pytest.raises(ValueError, match="at least 258 tokens; got vocab_size 100"):
        create_tokenizer(TEXTS, 100)
    with pytest.raises(ValueError, match=r"^Transformers has no model type 'lama'; did you mean 'llama'\?$"):
        create_policy("lama", SMALL, tokenizer, 0)
    with pytest.raises(ValueError, match=r"^'vit' models have no \.\.\.ForCausalLM class"):
        create_policy("vit", SMALL, tokenizer, 0)
    with pytest.raises(ValueError, match="cannot make a 'qwen2' model"):
        create_policy("qwen2", SMALL | {"vocab_size": 10}, tokenizer, 0)


def test_a_model_with_several_outputs_is_no_reward_model(path, tmp_path):
    reward = load_reward(path, torch.float32)
    reward.config.num_labels = 2
    reward.score = torch.nn.Linear(32, 2, bias=False)
    reward.save_pretrained(tmp_path)
    for load in (load_reward, load_critic):
        with pytest.raises(ValueError, match="has 2 outputs"):
            load(str(tmp_path), torch.float32)


ADAM = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def test_settings_keep_the_users_and_add_ours():
    user = {
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"eps": 1e-6, "torch_adam": True}},
    }
    before = copy.deepcopy(user)
    settings = deepspeed_settings(user, ADAM, 1.0)
    assert user == before
    assert settings["gradient_clipping"] == 1.0
    params = {"lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1, "torch_adam": True}
    assert settings["optimizer"]["params"] == params


def test_an_optimizer_that_cannot_be_compiled_here_is_refused_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    own = deepspeed_settings({"optimizer": {"type": "AdamW"}}, ADAM, 1.0)
    with pytest.raises(InvalidJob, match=r"no C\+\+ compiler; set optimizer.params.torch_adam true"):
        initialize(torch.nn.Linear(2, 2), own, ADAM, Optimizer())
    for built in ({}, {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}):
        assert missing_tools(deepspeed_settings(built, ADAM, 1.0), away=False) == []


def test_settings_that_deepspeed_refuses_are_told_as_that(trained, path):
    bfloat16 = {"enabled": True, "bf16_master_weights_and_grads": True}
    with pytest.raises(
        InvalidJob, match=r"deepspeed: is refused by DeepSpeed: Master weights feature requires ZeRO-2"
    ):
        trained(load_policy(path, torch.bfloat16), bf16=bfloat16, zero_optimization={"stage": 2})


def test_low_precision_has_master_weights_and_float32_accumulation():
    settings = deepspeed_settings({"bf16": {"enabled": True}}, ADAM, 0.0)
    assert settings["zero_optimization"]["stage"] == 1
    assert settings["data_types"] == {"grad_accum_dtype": "fp32"}
    assert deepspeed_settings({}, ADAM, 0.0)["zero_optimization"] == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file is made by root")
def test_a_file_of_another_user_is_said_to_be_unreadable_not_missing(path):
    load_policy(path, torch.float32)  # what that imports is this user's too
    with tempfile.TemporaryDirectory() as folder:
        model = Path(shutil.copytree(path, Path(folder) / "model"))
        for directory in (Path(folder), model):
            directory.chmod(0o755)
        for file in model.iterdir():
            file.chmod(0o600 if file.suffix == ".safetensors" else 0o644)
        os.seteuid(65534)
        try:
            with pytest.raises(ValueError, match="cannot load") as raised:
                load_policy(str(model), torch.float32)
        finally:
            os.seteuid(0)
    assert "user 65534 may not read model.safetensors, which is of user 0 with mode -rw-------" in str(
        raised.value
    )


@pytest.mark.parametrize("known", [True, False], ids=["a known family", "one of its own"])
def test_code_beside_a_models_weights_is_not_run(path, tmp_path, known):
    """Whoever made the model wrote it."""
    folder = shutil.copytree(path, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    config |= {"auto_map": named} | ({} if known else {"model_type": "evil"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["evil.Tokenizer", null]}}')
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit('ran')\n")
    with suppress(ValueError):
        load_tokenizer(str(folder))
    with nullcontext() if known else pytest.raises(ValueError, match="cannot load"):
        load_policy(str(folder), torch.float32)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_loaded_only_where_that_is_asked_for(path, tmp_path, monkeypatch):
    """They may hold code, from which only their loader protects."""
    model = load_policy(path, torch.float32)
    folder = shutil.copytree(path, tmp_path / "pickled", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    refused = r"only as pickles \(pytorch_model.bin\), .* save them as safetensors, or set RLHF_PICKLED_WEIGHTS=allow"
    with pytest.raises(ValueError, match=refused):
        load_policy(str(folder), torch.float32)
    monkeypatch.setenv("RLHF_PICKLED_WEIGHTS", "allow")
    again = load_policy(str(folder), torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_created_model_that_reads_images_says_how_both_engines_place_them():
    """vLLM goes by it, Transformers does not."""
    manifest = yaml.safe_load((ROOT / "examples" / "images" / "sft.yaml").read_text())
    made = manifest["spec"]["model"]["create"]
    tokenizer = create_tokenizer(["how many squares?"], made["tokenizer"]["vocabSize"], images=True)
    model = create_policy(made["modelType"], made["config"], tokenizer, 0)
    assert places_images(model.config.to_dict())
    del made["config"]["text_config"]["rope_parameters"]["mrope_section"]
    made["config"]["text_config"]["rope_parameters"]["mrope_interleaved"] = False
    assert not places_images(create_policy(made["modelType"], made["config"], tokenizer, 0).config.to_dict())
