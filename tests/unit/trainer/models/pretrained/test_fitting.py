"""Tokenizer, lengths and end tokens that do not fit a model are known by its configuration, before weights are read."""

import json
import shutil
from pathlib import Path

import pytest
from tests.support.tiny.models import byte_tokenizer, tiny_model
from tests.unit.api.manifests import document

from rlhf_api.contract.run import RunConfig
from rlhf_api.manifest.load import parse
from rlhf_trainer.models.pretrained import load
from rlhf_trainer.models.pretrained.fitting import fit_problems


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """A model of 256 positions and 258 tokens, without its weights."""
    folder = tiny_model(tmp_path_factory.mktemp("model") / "policy", tie=False, seed=0)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    return folder


def problems(policy: Path, *overrides: str) -> list[str]:
    usual = (f"spec.model={{policy: {policy}}}", "spec.sampling={maxNewTokens: 100}")
    scored = (
        "spec.reward={functions: [{function: 'a:b'}]}",
        "spec.ppo={minibatchSize: 8, klCoefficient: 0.0}",
    )
    made = parse(document(*usual, *scored, "spec.data={train: [a.jsonl], maxPromptLength: 100}", *overrides))
    config = RunConfig(job="job", spec=made.spec, workdir="none")
    return [str(problem) for problem in fit_problems(config, load.load_tokenizer(str(policy)))]


def test_a_job_that_fits(policy):
    assert problems(policy) == []


def test_lengths_beyond_the_positions(policy):
    assert problems(policy, "spec.data.maxPromptLength=157") == [
        "spec.model.policy: sequences of up to 257 tokens do not fit a model with 256 positions; lower the prompt or "
        "response length (of episodes, environment.maxTokens)"
    ]
    kl = "spec.ppo.klCoefficient=0.1", f"spec.model.reference={policy}"
    assert len(problems(policy, "spec.data.maxPromptLength=157", *kl)) == 2, "the reference's too"


def test_a_tokenizer_larger_than_the_embeddings(policy, tmp_path):
    folder = shutil.copytree(policy, tmp_path / "policy")
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<more>"])
    tokenizer.save_pretrained(folder)
    (problem,) = problems(folder)
    assert problem.startswith(
        "spec.model.policy: the tokenizer has 259 tokens but the model has embeddings for 258"
    )


def test_end_tokens_outside_of_the_vocabulary(policy, tmp_path):
    (problem,) = problems(policy, "spec.sampling.responseEndId=258")
    assert problem == "spec.sampling.responseEndId: must be a token of the tokenizer, which has 258; got 258"
    folder = shutil.copytree(policy, tmp_path / "policy")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [256, 999]}))
    (problem,) = problems(folder)
    assert problem.startswith(
        f"spec.model.policy: eos_token_id of {folder}/generation_config.json must be of the model's"
    )
    assert problem.endswith("got 999")


def test_models_of_a_hub_are_not_loaded(policy):
    assert problems(policy, "spec.model={policy: owner/name}") == []
