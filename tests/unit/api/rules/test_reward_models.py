"""Reward models beside `model.reward`: what they are for the job, and what is refused."""

import pytest
from tests.unit.api.manifests import job, refusals

from rlhf_api.contract.teachers import named_models
from rlhf_api.estimate.duration import Batch, Work
from rlhf_api.estimate.resources import plan, problems
from rlhf_api.estimate.sizes import Size
from rlhf_api.roles import Role
from rlhf_api.rules.health import metrics_of

ALONE = ("spec.model={policy: org/policy}", "spec.reward={}")
TWO = "spec.reward.models=[{name: safe, model: org/safe, weight: -0.5}, {name: kind, model: org/kind}]"
GPU = "spec.reward.pods.gpu={count: 1, memoryGigabytes: 40}"


def test_models_alone_are_a_reward():
    spec = job(*ALONE, TWO).spec
    assert spec.has_reward
    assert [(model.name, model.path, model.weight) for model in spec.reward_models] == [
        ("safe", "org/safe", -0.5),
        ("kind", "org/kind", 1.0),
    ]
    assert spec.source("critic") == ("policy", "org/policy")
    whole = job(TWO).spec
    assert [model.name for model in whole.reward_models] == ["model", "safe", "kind"]
    assert whole.source("critic") == ("reward", "org/reward")


def test_models_are_known_where_paths_and_metrics_are():
    spec = job(TWO).spec
    assert [(where, name) for _, where, name in named_models(spec, ["reward"])] == [
        ("spec.model.reward", "org/reward"),
        ("spec.reward.models[0].model", "org/safe"),
        ("spec.reward.models[1].model", "org/kind"),
    ]
    assert {"reward_safe_mean", "reward_kind_failed"} <= set(metrics_of(spec) or ())


def test_memory_and_seconds_are_of_all_models_together():
    spec = job(TWO, GPU, "spec.model.parameters=1e9").spec
    sizes = {"policy": Size(1e9), "reward": Size(2e9), "spec.reward.models[0].model": Size(3e9)}
    words = plan(spec, sizes)[Role.REWARD].memory or ""
    assert words.startswith("12 of 40 GB without activations: 6e9 parameters x 2 B"), (
        "the third as the policy"
    )
    assert words.endswith("; each reward model of unknown size is taken to be as large as the policy")
    sizes["spec.reward.models[1].model"] = Size(95e9)
    (problem,) = problems(spec, sizes)
    assert str(problem).startswith("spec.reward: one GPU must hold 200 GB: 100e9 parameters x 2 B")
    assert str(problem).endswith("use larger GPUs, or fewer or smaller reward models")
    batch = Batch.of(spec)
    assert Work.of(spec, sizes, batch).score == 2 * 100e9 * batch.count * batch.tokens


@pytest.mark.parametrize(
    ("overrides", "where", "says"),
    [
        (("spec.reward.models=[{name: a}]",), "spec.reward.models[0].model", "is required"),
        (("spec.reward.models=[{model: m}]",), "spec.reward.models[0].name", "is required"),
        (
            ("spec.reward.models=[{name: model, model: m}]",),
            "spec.reward.models[0].name",
            "two rewards are 'model'",
        ),
        (
            ("spec.reward.models=[{name: a, model: m}, {name: a, model: n}]",),
            *("spec.reward.models[1].name", "two rewards are 'a' in the metrics"),
        ),
        (
            ("spec.reward.models=[{name: c, model: m}]",),
            *("spec.reward.functions[0].name", "two rewards are 'c' in the metrics"),
        ),
        ((TWO, "spec.reward.engine=vllm"), "spec.reward.engine", "vLLM runs one model, spec.model.reward"),
        ((*ALONE, TWO, "spec.reward.engine=vllm"), "spec.reward.engine", "or remove them; got vllm"),
        (
            (*ALONE, TWO, "spec.reward.modelWeight=0.5"),
            "spec.reward.modelWeight",
            "spec.model.reward is not set",
        ),
        (
            (*ALONE, "spec.algorithm=sft", "spec.ppo={}", "spec.sampling={}", TWO),
            *("spec.reward.models", "applies only to the reward role"),
        ),
    ],
)
def test_what_cannot_act_is_refused(overrides, where, says):
    refused = refusals(*overrides)
    assert list(refused) == [where]
    assert says in refused[where]
