"""`spec.rollout`: every field acts on the graph or the generators, or is refused under its own name."""

import pytest
from tests.unit.api.manifests import job, refusals

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.own_algorithm import resolve
from rlhf_api.sections.rollout import Rollout

PLAIN = "spec.sampling.topK=-1"
AHEAD = "spec.rollout.maxStaleness=1"
REFUSED = [
    (
        ("spec.generator.sharedWithTrainer=true", AHEAD),
        "spec.rollout.maxStaleness",
        "leaves none; use 0; got 1",
    ),
    (
        ("spec.replay.streamDataLoaderType=dynamic", AHEAD),
        "spec.rollout.maxStaleness",
        "use fixed there, or 0 here; got 1",
    ),
    (("spec.weights.everySteps=3", AHEAD), "spec.weights.everySteps", "use at most 2; got 3"),
    (
        ("spec.rollout.inFlight=keep",),
        "spec.rollout.inFlight",
        "applies only with maxStaleness above 0; remove it; got 'keep'",
    ),
    (
        ("spec.rollout.proximal=sampled",),
        "spec.rollout.proximal",
        "applies only with maxStaleness above 0; remove it; got 'sampled'",
    ),
    (
        ("spec.rollout.importanceCap=3",),
        "spec.rollout.importanceCap",
        "applies only with importance; set that, or remove this; got 3",
    ),
    (
        ("spec.rollout.importanceMask=3",),
        "spec.rollout.importanceMask",
        "applies only with importance; set that, or remove this; got 3",
    ),
    (
        (AHEAD, "spec.rollout.proximal=sampled", "spec.rollout.importance=token"),
        *("spec.rollout.importance", "uses the sampler's in their place"),
    ),
    (
        ("spec.weights.everySteps=2", "spec.rollout.importance=token"),
        *("spec.rollout.importance", "uses the sampler's in their place"),
    ),
    (
        ("spec.rollout={importance: token, importanceCap: 3, importanceMask: 2}",),
        *(
            "spec.rollout.importanceCap",
            "never acts: importanceMask 2 drops such weights first; remove one of them; got 3",
        ),
    ),
    *(
        ((*others, "spec.rollout.oversampling=0.25"), "spec.rollout.oversampling", says)
        for others, says in (
            (("spec.generator.sharedWithTrainer=true",), "remove it; got 0.25"),
            ((AHEAD,), "go on with later steps while a long response ends; use one of both; got 0.25"),
            (("spec.trainer.deterministic=true",), "use one of both; got 0.25"),
            (
                ("spec.algorithm=sft", "spec.ppo={}"),
                "applies only to sampled responses, and the job has none: sft trains on given ones",
            ),
        )
    ),
    ((AHEAD, "spec.sampling.topP=0.9"), "spec.sampling", "set topK too, from 1 to 256"),
    (
        (AHEAD, "spec.sampling.topK=257"),
        "spec.sampling",
        "or use none of them; got topP 1, minP 0, topK 257",
    ),
    ((AHEAD, "spec.sampling.minP=0.1"), "spec.sampling", "set topK too, from 1 to 256"),
    ((AHEAD, "spec.sampling.minNewTokens=2"), "spec.sampling", "set topK too"),
    ((AHEAD, "spec.sampling.structuredOutputs={regex: a+}"), "spec.sampling", "set topK too"),
    (
        ("spec.generator.sharedWithTrainer=true", "spec.sampling.structuredOutputs={choice: [a, b]}"),
        *("spec.sampling.structuredOutputs", "the trainer samples; use generators, or remove this"),
    ),
    (
        ("spec.sampling={minNewTokens: 2, structuredOutputs: {jsonSchema: {}}}",),
        *("spec.sampling.minNewTokens", "structuredOutputs allow no other; use 0"),
    ),
    (
        ("spec.sampling={stop: ['.'], structuredOutputs: {regex: a}}",),
        *("spec.sampling.stop", "would end responses before structuredOutputs do"),
    ),
    (
        ("spec.sampling.structuredOutputs={regex: a, choice: [b]}",),
        *(
            "spec.sampling.structuredOutputs",
            "exactly one of regex, jsonSchema, choice and grammar; got regex and",
        ),
    ),
    (
        ("spec.sampling={maxNewTokens: 8, thinking: {budget: 8}}",),
        *("spec.sampling.thinking.budget", "must be below sampling.maxNewTokens (8)"),
    ),
    (
        ("spec.sampling.thinking={budget: 8, closing: Enough.}",),
        *("spec.sampling.thinking.closing", "must have '</think>' in it, which ends the thought"),
    ),
    *(
        (
            (f"spec.{other}", "spec.sampling.thinking.budget=8"),
            *("spec.sampling.thinking", f"not supported with spec.{other.partition('=')[0]}; remove one"),
        )
        for other in (
            "generator.sharedWithTrainer=true",
            "reward.fineGrained=true",
            "sampling.structuredOutputs={regex: a}",
            "environment={path: 'a:b'}",
        )
    ),
    (("spec.sampling.structuredOutputs={}",), "spec.sampling.structuredOutputs", "got none"),
    (
        ("spec.algorithm=sft", "spec.ppo={}", "spec.rollout={maxStaleness: 1}"),
        *(
            "spec.rollout.maxStaleness",
            "applies only to sampled responses, and the job has none: sft trains on given ones",
        ),
    ),
]


@pytest.mark.parametrize(("overrides", "where", "says"), REFUSED)
def test_what_would_have_no_effect_is_refused(overrides, where, says) -> None:
    assert says in refusals(PLAIN, *overrides)[where]


@pytest.mark.parametrize(
    ("overrides", "corrected"),
    [
        ((), False),
        ((AHEAD,), True),
        ((AHEAD, "spec.rollout.importance=none"), False),
        ((AHEAD, "spec.rollout.proximal=sampled"), False),
        (("spec.rollout.importance=sequence",), True),
        ((AHEAD, "spec.weights.everySteps=2"), True),
        ((AHEAD, "spec.rollout.inFlight=keep", "spec.rollout.importanceMask=5"), True),
    ],
)
@pytest.mark.parametrize("one_update", [True, False])
def test_the_loss_is_corrected_where_the_graph_says_so(overrides, corrected, one_update) -> None:
    size = 8 if one_update else 4
    graph = job(PLAIN, *overrides, f"spec.ppo.minibatchSize={size}").spec.graph
    (train,) = [node for node in graph.nodes if node.name == "train_policy"]
    assert ("importance_weights" in train.reads) == corrected
    assert any("importance_weights" in node.writes for node in graph.nodes) == corrected


def test_a_correction_that_an_algorithm_of_ones_own_does_not_compute_is_refused():
    own = ("spec.ppo={}", "spec.algorithm=examples.own_algorithm.best_of_n:ALGORITHM", PLAIN, AHEAD)
    resolve(job(*own).spec)
    with pytest.raises(InvalidJob) as caught:
        resolve(job(*own, "spec.rollout.importance=token", "spec.rollout.importanceCap=3").spec)
    first, second = map(str, caught.value.problems)
    assert first.startswith(
        "spec.rollout.importance: the graph of 'examples.own_algorithm.best_of_n:ALGORITHM' "
    )
    assert second.startswith("spec.rollout.importanceCap: the graph of")
    assert second.endswith("computes no importance_weights; remove it; got 3.0")


def test_a_copy_of_a_spec_has_a_graph_of_its_own() -> None:
    spec = job(PLAIN).spec
    before = spec.graph
    weighted = spec.model_copy(update={"rollout": Rollout(importance="token")})
    assert any("importance_weights" in node.writes for node in weighted.graph.nodes)
    assert spec.graph is before
