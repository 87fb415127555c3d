"""A process reward model scores steps as plain forward passes and a loop over the text do."""

import math
from types import SimpleNamespace

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer, tiny_model
from tests.unit.api.manifests import ALONE, job, refusals
from transformers import AutoModelForTokenClassification, LlamaForTokenClassification

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.models.forward.inference import Forward
from rlhf_trainer.models.pretrained.load import load_process_reward
from rlhf_trainer.process.settings import reward_sources
from rlhf_trainer.roles import reward
from rlhf_trainer.scoring.rewards import WeightedModel
from rlhf_trainer.scoring.steps import StepScorer
from rlhf_trainer.tensors.records import Sequences

TOKENIZER = byte_tokenizer()
EOS = TOKENIZER.eos_token_id
RESPONSES = [("one\ntwo", True), ("a\n\nbc\n", True), ("\n", True), ("x\nyz", False), ("end##", True)]
"""Texts, and whether the response ended."""
ENDS = [[3, 7], [1, 6], [1], [1, 3], [5]]
"""The last tokens of their steps, a byte each: blank text is no step, and what stops a response no text."""


def ids(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


SEQUENCES = Sequences.pack([(ids("q: "), [*ids(t), *[EOS] * ended]) for t, ended in RESPONSES])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("process")
    tiny_model(folder / "policy", tie=False, seed=0)
    model = load_process_reward(str(folder / "policy"), torch.float32)
    torch.nn.init.normal_(model.score.weight, std=2.0, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(folder / "reward")
    TOKENIZER.save_pretrained(folder / "reward")
    return folder


@pytest.fixture(scope="module")
def model(folder) -> LlamaForTokenClassification:
    return AutoModelForTokenClassification.from_pretrained(folder / "reward").eval()


def probabilities(model) -> list[dict[int, float]]:
    """By the last token of each step of each response."""
    result = []
    for (text, ended), ends in zip(RESPONSES, ENDS, strict=True):
        tokens = [*ids("q: "), *ids(text), *[EOS] * ended]
        with torch.no_grad():
            odds = model(torch.tensor([tokens])).logits[0, len(ids("q: ")) :, 0].tolist()
        result.append({end: 1 / (1 + math.exp(-odds[end])) for end in ends})
    return result


def scorer(model, how: str, budget: int = 1000) -> StepScorer:
    return StepScorer(Forward(model, budget, 0), TOKENIZER, "\n", how, ["##"])


@pytest.mark.parametrize("budget", [1, 1000])
def test_each_step_has_its_probability_at_its_last_token(model, budget):
    scores = scorer(model, "each", budget)(SEQUENCES, [])
    parts = scores.split(SEQUENCES.response_lengths.tolist())
    for part, expected in zip(parts, probabilities(model), strict=True):
        assert part.tolist() == pytest.approx([expected.get(i, 0.0) for i in range(len(part))], abs=1e-5)
    weighted, report = WeightedModel(0.5, scorer(model, "each", budget), fine_grained=True).score(
        SEQUENCES, []
    )
    assert weighted.tolist() == pytest.approx((0.5 * scores).tolist())
    assert not report.failures


@pytest.mark.parametrize("how", ["min", "product", "last"])
def test_a_response_is_scored_by_its_steps(model, how):
    of = {"min": min, "product": math.prod, "last": lambda each: each[-1]}[how]
    scores = scorer(model, how)(SEQUENCES, [])
    assert scores.tolist() == pytest.approx(
        [of([*steps.values()]) for steps in probabilities(model)], abs=1e-5
    )
    assert max(scores.tolist()) - min(scores.tolist()) > 0.1


MODEL = (
    "spec.reward.functions=[]",
    "spec.ppo={klCoefficient: 0, minibatchSize: 8}",
    "spec.model.dtype=float32",
)


def config(folder, *overrides: str, model: str = "reward") -> RunConfig:
    named = f"spec.model={{policy: {folder}/policy, reward: {folder}/{model}, dtype: float32}}"
    short = "spec.data.maxPromptLength=64", "spec.sampling.maxNewTokens=64"
    spec = job("spec.trainer={}", named, "spec.reward.functions=[]", *short, *overrides).spec
    return RunConfig(job="job", spec=spec, workdir="/w")


def scorer_of_role(made: RunConfig, tokenizer):
    return reward.model_scorer(made, tokenizer, *reward_sources(made.spec))


def test_the_role_scores_steps_as_the_manifest_says(folder, model):
    one = scorer_of_role(config(folder, "spec.reward.stepScores=min"), TOKENIZER)
    assert isinstance(one, StepScorer)
    assert (one.how, one.separator) == ("min", "\n")
    overrides = "spec.reward={fineGrained: true, stepScores: each}", "spec.data.stepSeparator=;;"
    other = scorer_of_role(config(folder, *overrides), TOKENIZER)
    assert isinstance(other, StepScorer)
    assert (other.how, other.separator) == ("each", ";;")
    scores = one(SEQUENCES, [])
    assert scores.tolist() == pytest.approx(scorer(model, "min")(SEQUENCES, []).tolist(), abs=1e-5)


def test_models_of_other_tokens_or_outputs_are_refused(folder):
    made = config(folder, "spec.reward.stepScores=min")
    other = SimpleNamespace(get_vocab=lambda: {"a": 0}, pad_token_id=0, eos_token_id=0)
    with pytest.raises(InvalidJob, match=r"spec.reward.stepScores: .* another vocabulary .*got 'min'"):
        scorer_of_role(made, other)
    separated = config(folder, "spec.reward.stepScores=min", f"spec.data.stepSeparator={TOKENIZER.eos_token}")
    with pytest.raises(InvalidJob, match=r"spec.data.stepSeparator: is no text of the tokenizer's"):
        scorer_of_role(separated, TOKENIZER)
    with pytest.raises(InvalidJob, match=r"spec.model.reward: .* tokens and steps need a token-class"):
        scorer_of_role(config(folder, "spec.reward.stepScores=min", model="policy"), TOKENIZER)


@pytest.mark.parametrize(
    ("overrides", "where", "says"),
    [
        (("spec.reward.stepScores=each",), "spec.reward.stepScores", "set fineGrained, or use min"),
        (
            ("spec.reward.stepScores=min", "spec.reward.fineGrained=true"),
            "spec.reward.stepScores",
            "fineGrained is of tokens; use each, or fineGrained false; got 'min'",
        ),
        (
            ("spec.reward.stepScores=min", "spec.reward.engine=vllm"),
            "spec.reward.engine",
            "which stepScores needs; use transformers",
        ),
        (
            ("spec.reward.stepScores=min", "spec.environment={path: 'a:B'}"),
            "spec.reward.stepScores",
            "whose responses have turns; remove it; got 'min'",
        ),
        (("spec.reward.stepScores=min", ALONE), "spec.reward.stepScores", "spec.model.reward is not set"),
        (
            ("spec.reward.stepScores=min", "spec.reward.modelWeight=0"),
            "spec.reward.stepScores",
            "modelWeight is 0",
        ),
        (("spec.data.stepSeparator=;",), "spec.data.stepSeparator", "spec.reward.stepScores is not set"),
        (
            ("spec.algorithm=dpo", "spec.ppo={}", "spec.data.stepSeparator=;"),
            "spec.data.stepSeparator",
            "whole responses",
        ),
    ],
)
def test_scores_of_steps_are_refused_where_nothing_has_them(overrides, where, says):
    assert says in refusals(*overrides)[where]
