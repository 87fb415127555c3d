"""Several reward models of a job, in the reward role's process: each as it would score alone, and their sum."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer, tiny_model
from tests.unit.api.manifests import job
from transformers import LlamaConfig, LlamaForSequenceClassification, LlamaForTokenClassification

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.models.pretrained.create import create_tokenizer
from rlhf_trainer.models.pretrained.fitting import fit_problems
from rlhf_trainer.roles import reward
from rlhf_trainer.scoring.rewards import WeightedModel, WeightedModels
from rlhf_trainer.tensors.records import Sequences

TOKENIZER = byte_tokenizer()
TEXTS = [("good ", "morning"), ("a ", "b"), ("bad ", "day to you all")]
ROWS = [{"prompt": prompt} for prompt, _ in TEXTS]


def ids(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


SEQUENCES = replace(
    Sequences.pack([(ids(prompt), [*ids(answer), TOKENIZER.eos_token_id]) for prompt, answer in TEXTS]),
    finished=torch.ones(3, dtype=torch.bool),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two reward models, of which `other` has a vocabulary of its own, two of tokens, and a language model."""
    folder = tmp_path_factory.mktemp("rewards")
    own = create_tokenizer([a + b for a, b in TEXTS] * 3, 290)
    for seed, (name, tokenizer) in enumerate((("same", TOKENIZER), ("other", own))):
        torch.manual_seed(seed)
        widths = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        config = LlamaConfig(vocab_size=300, num_labels=1, initializer_range=0.3, pad_token_id=0, **widths)
        LlamaForSequenceClassification(config).save_pretrained(folder / name)
        LlamaForTokenClassification(config).save_pretrained(folder / f"{name}-tokens")
        for kind in ("", "-tokens"):
            tokenizer.save_pretrained(folder / f"{name}{kind}")
    tiny_model(folder / "language", tie=False, seed=0)
    return folder


def config(folder, *overrides: str) -> RunConfig:
    """Of a job without other rewards than those of the overrides."""
    short = ("spec.data.maxPromptLength=64", "spec.sampling.maxNewTokens=64", "spec.trainer={}")
    model = f"spec.model={{policy: {folder}/language, dtype: float32}}"
    spec = job(*short, model, "spec.reward.functions=[]", *overrides).spec
    return RunConfig(job="job", spec=spec, workdir="/w")


def scores_of(folder, *overrides: str):
    """Scores and report of the role's models."""
    engine, models = reward.reward_models(config(folder, *overrides), TOKENIZER)
    assert engine is None
    return models.score(SEQUENCES, ROWS)


def named(folder, *entries: tuple[str, str | Path, float]) -> str:
    """The override that names these models: (name, folder, weight)."""
    models = [
        f"{{name: {name}, model: {folder / model}, weight: {weight}}}" for name, model, weight in entries
    ]
    return f"spec.reward.models=[{', '.join(models)}]"


def test_the_score_is_the_weighted_sum_of_what_each_model_scores_alone(folder):
    alone = {name: scores_of(folder, f"spec.model.reward={folder}/{name}")[0] for name in ("same", "other")}
    assert not torch.allclose(alone["same"], alone["other"])
    main = f"spec.model.reward={folder}/same", "spec.reward.modelWeight=2.0"
    entries = ("own", "other", -0.5), ("watched", "other", 0.0)
    scores, report = scores_of(folder, *main, named(folder, *entries))
    assert torch.allclose(scores, 2 * alone["same"] - 0.5 * alone["other"])
    assert list(report.parts) == ["model", "own", "watched"]
    for name, of in (("model", "same"), ("own", "other"), ("watched", "other")):
        assert report.parts[name].scores == pytest.approx(alone[of].tolist()), "before its weight"
    without, report = scores_of(folder, named(folder, ("a", "same", 1.0), ("b", "other", 1.0)))
    assert torch.allclose(without, alone["same"] + alone["other"])
    assert list(report.parts) == ["a", "b"]


def test_a_response_that_one_model_does_not_score_has_no_score_and_says_which():
    def scores(*values: float):
        return lambda *_: torch.tensor(values)

    models = (
        WeightedModel(1.0, scores(1.0, 2.0, 3.0)),
        WeightedModel(0.0, scores(1.0, math.nan, 3.0), name="own"),
    )
    totals, report = WeightedModels(models).score(SEQUENCES, ROWS)
    assert totals.isnan().tolist() == [False, True, False]
    assert report.failures == {1: "own: its score is not finite"}
    assert {name: part.failed for name, part in report.parts.items()} == {"model": 0, "own": 1}


def test_a_model_whose_head_or_vocabulary_does_not_fit_is_named(folder):
    where = r"spec\.reward\.models\[1\]\.model"
    with pytest.raises(InvalidJob, match=rf"^{where}: .*language"):
        scores_of(folder, named(folder, ("a", "same", 1.0), ("b", "language", 1.0)))
    with pytest.raises(InvalidJob, match=rf"^{where}: .* tokens and steps need a token-class"):
        scores_of(
            folder, "spec.reward.stepScores=min", named(folder, ("a", "same-tokens", 1.0), ("b", "same", 1.0))
        )
    with pytest.raises(InvalidJob, match=rf"^spec.reward.fineGrained: {where} has another vocabulary"):
        scores_of(
            folder,
            "spec.reward.fineGrained=true",
            named(folder, ("a", "same-tokens", 1.0), ("b", "other-tokens", 1.0)),
        )


def test_a_model_that_is_too_short_is_named_before_any_weights_are_read(folder, tmp_path):
    shutil.copytree(folder / "same", tmp_path / "short")
    read = json.loads((tmp_path / "short" / "config.json").read_text())
    (tmp_path / "short" / "config.json").write_text(json.dumps({**read, "max_position_embeddings": 100}))
    made = config(folder, named(folder, ("a", "same", 1.0), ("b", tmp_path / "short", 0.0)))
    (problem,) = fit_problems(made, TOKENIZER)
    assert problem.where == "spec.reward.models[1].model"
    assert "sequences of up to 128 tokens do not fit a model with 100 positions" in problem.message
