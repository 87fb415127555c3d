"""Every leaf in every kind of job: of a part that the job has not it is refused under its own name, whatever it says.

`test_every_leaf.py` shows of each leaf that it acts where its part is there; here the parts are taken away, by
algorithm, by who generates, and by the reference. Leaves inside lists are refused with their lists, pods with one of
their leaves.
"""

import json
from typing import Any

import pytest
from pydantic.alias_generators import to_camel
from tests.unit.manifest_fields.places import changed, keys, leaves, value, values

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.manifest.load import parse
from rlhf_api.spec import Spec

GIVEN = ("sft", "reward", "process_reward", "dpo", "kto")
SAMPLED = [name for name in ALGORITHMS if name not in GIVEN]
SECTIONS = {
    name: f"spec.{to_camel(algorithm.section)}."
    for name, algorithm in ALGORITHMS.items()
    if algorithm.settings
}
REFERENCE = ("spec.reference.", "spec.model.reference")
CRITIC = (
    "spec.model.critic",
    "spec.optimizer.criticLearningRate",
    "spec.trainer.critic",
    "spec.model.lora.critic.",
)
GENERATOR = ("spec.generator.", "spec.weights.")
RESPONSES = (
    *(
        "spec.sampling.",
        "spec.replay.",
        "spec.rollout.",
        "spec.pretraining.",
        "spec.reward.",
        "spec.model.reward",
    ),
    "spec.health.logprobDifference",
    "spec.health.logprobOutliers",
)
TAUGHT = {"model": {"policy": "p", "reference": "t", "parameters": 1e9}}
UNSCORED = (
    *(f"spec.reward.{key}" for key in ("scale", "bias", "clip", "fineGrained", "maxFailedShare", "replicas")),
    *(f"spec.distillation.{key}" for key in ("dynamicSampling", "overlongBuffer", "overlongPenalty")),
)
SWITCH = "spec.generator.sharedWithTrainer"


def manifest(algorithm: str, settings: dict[str, Any], **spec: Any) -> Any:
    section = {to_camel(algorithm): settings} if settings else {}
    data = {"train": ["a.jsonl"], "promptsPerStep": 8, "maxPromptLength": 8}
    made = {"algorithm": algorithm, "steps": 6, "model": {"policy": "p", "parameters": 1e9}, "data": data}
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "x"}}
    return {**head, "spec": {**made, **section, **spec}}


def cases() -> Any:
    """A manifest, and where leaves of parts stand that it has not."""
    for name in GIVEN:
        without = (*RESPONSES, *GENERATOR, *CRITIC, *(REFERENCE if name not in ("dpo", "kto") else ()))
        yield pytest.param(manifest(name, {}), without, name, id=name)
    without = (*RESPONSES, *GENERATOR, *CRITIC, *REFERENCE)
    yield pytest.param(manifest("dpo", {"loss": "simpo"}), without, "dpo", id="dpo without a reference")
    for name in SAMPLED:
        critic = () if name == "ppo" else CRITIC
        modes = ("generators", "shared", "without a reference")
        for mode in modes[:2] if name == "distillation" else modes:
            shared, free = mode == "shared", mode == "without a reference"
            kl = {"klCoefficient": 0 if free else 0.1}
            made = manifest(
                name,
                {"minibatchSize": 8} | (({"loss": "simpo"} if free else {}) if name == "online_dpo" else kl),
                sampling={"maxNewTokens": 5, "responsesPerPrompt": 2},
                reward={"functions": [{"function": "a:b"}]},
                generator={"sharedWithTrainer": shared},
                **(TAUGHT if name == "distillation" else {}),
            )
            of_kl = tuple(
                f"{SECTIONS[name]}{key}" for key in ("klEstimator", "klIn", "klTarget", "referenceEma")
            )
            without = (*critic, "spec.data.maxResponseLength", f"{SECTIONS[name]}klHorizon")
            without += (f"{SECTIONS[name]}overlongPenalty", "spec.reward.dtype", "spec.reward.modelWeight")
            without += (GENERATOR if shared else ()) + ((*REFERENCE, *of_kl) if free else ())
            yield pytest.param(made, without, name, id=f"{name}, {mode}")
    made = manifest("distillation", {"minibatchSize": 8}, **TAUGHT)
    yield pytest.param(made, UNSCORED, "distillation", id="distillation, without a reward")


def read(made: Any) -> tuple[Spec | None, tuple[Problem, ...]]:
    try:
        return parse(made).spec, ()
    except InvalidJob as error:
        return None, error.problems


def names(problem: Problem, at: str) -> bool:
    """It is of the leaf, or of an object that it stands in and that lacks a field."""
    if problem.message == "is required and missing":
        return at.startswith(problem.where.rpartition(".")[0])
    return at.startswith(problem.where) or problem.where.startswith(at)


LEAVES = [
    (at, schema)
    for at, schema in leaves()
    if "[0]" not in at and (".pods." not in at or at.endswith(".pods.image"))
]


@pytest.mark.parametrize(("made", "without", "algorithm"), list(cases()))
def test_a_leaf_of_a_part_that_is_not_there_is_refused(
    made: Any, without: tuple[str, ...], algorithm: str
) -> None:
    others = ("spec.custom.", *(where for name, where in SECTIONS.items() if name != algorithm))
    base, refused_count = parse(made).spec, 0
    for at, schema in LEAVES:
        if not at.startswith((*without, *others)) or (at == SWITCH and algorithm not in GIVEN):
            continue
        for other in values(at, schema, value(made, at)):
            after = json.loads(json.dumps(changed(made, keys(at), other)))
            accepted, problems = read(after)
            assert accepted in (base, None), f"{at} = {other!r} is accepted, and has no effect"
            assert accepted or any(names(problem, at) for problem in problems), (at, problems)
            refused_count += accepted is None
    assert refused_count
