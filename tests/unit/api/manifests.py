"""Valid manifests for tests to break."""

import json
from typing import Any

import pytest

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import apply_override, parse
from rlhf_api.spec import Spec

SEVEN = "spec.model.parameters=7.6e9"
GPU = "spec.pods.gpu={count: 1, memoryGigabytes: 80}"
ALONE = "spec.model.reward=null"  # the critic then starts from the policy
GIVEN = ("sft", "reward", "process_reward", "dpo", "kto")
"""Algorithms that train on given responses."""
STAGE = "spec.trainer.deepspeed.zero_optimization.stage="


def document(*overrides: str) -> Any:
    """A valid PPO manifest's document with overrides applied; without what it says of parts that they take away."""
    made: Any = {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": "job"},
        "spec": {
            "algorithm": "ppo",
            "steps": 4,
            "model": {"policy": "org/policy", "reward": "org/reward"},
            "data": {"train": ["prompts.jsonl"], "promptsPerStep": 8},
            "ppo": {"minibatchSize": 8},
            "sampling": {"topK": 5},
            "optimizer": {"betas": [0.9, 0.95], "learningRate": 1e-05},
            "trainer": {"deepspeed": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}},
            "generator": {"engineArguments": {"gpu-memory-utilization": 0.5}},
            "reward": {"functions": [{"function": "a.b:c", "weight": 0.5}], "clip": [-1.0, 1.0]},
            "checkpoint": {"store": "s3://bucket/prefix"},
            "env": {"HF_HOME": "/tmp/hf"},
        },
    }
    if {f"spec.algorithm={name}" for name in GIVEN} & set(overrides):
        made["spec"] |= {"model": {"policy": "org/policy"}, "sampling": {}, "generator": {}, "reward": {}}
    if "spec.generator.sharedWithTrainer=true" in overrides:
        made["spec"]["generator"] = {}
    for override in overrides:
        made = apply_override(made, override)
    return made


def job(*overrides: str) -> RLHFJob:
    return parse(document(*overrides))


def refusals(*overrides: str) -> dict[str, str]:
    """Messages about a manifest that is refused, by their places."""
    with pytest.raises(InvalidJob) as caught:
        job(*overrides)
    messages = dict[str, str]()
    for problem in caught.value.problems:
        messages[problem.where] = "; ".join(filter(None, (messages.get(problem.where), problem.message)))
    return messages


def assert_refused(override: str, *rest: str, given: tuple[str, ...] = ()) -> None:
    """Of an override, after those `given`, a problem is told in one line with the words that come last. Before them may
    stand its place: how it ends, or, from a . or [ on, what follows the overridden field; without one it is that field
    itself."""
    *places, words = rest
    (place,) = places or [""]
    if place[:1] in ("", ".", "["):
        place = override.partition("=")[0] + place
    messages = refusals(*given, override)
    assert any(where.endswith(place) and words in message for where, message in messages.items()), messages
    assert not any("\n" in message for message in messages.values())


def unchecked(*overrides: str) -> Spec:
    """A spec that may be refused."""
    return RLHFJob.model_validate_json(json.dumps(document(*overrides))).spec
