"""The CEL rules: each accepts and refuses what it should, and none refuses what the full checks accept."""

import pytest
from hypothesis import given, settings
from tests.api.manifests import document, job
from tests.api.rules import refusals
from tests.api.shapes import manifests

from rlhf_api.cel import RULES
from rlhf_api.checks import check_change
from rlhf_api.manifest import parse
from rlhf_api.problems import InvalidJob

GRADIENT = {
    "grpo": "grpo",
    "drGrpo": "dr_grpo",
    "rloo": "rloo",
    "reinforcePp": "reinforce_pp",
    "gspo": "gspo",
}
"""Algorithms beside PPO that sample responses, by their sections."""


def of(section: str, settings: str) -> str:
    """A job of another algorithm, with 8 responses a step and these settings."""
    return (
        f"spec={{algorithm: {GRADIENT[section]}, steps: 4, model: {{policy: p, reward: r}}, "
        "data: {train: [x], promptsPerStep: 4}, sampling: {answersPerPrompt: 2}, "
        f"{section}: {{{settings}}}}}"
    )


VOLUME = "{name: data, mountPath: /data, claim: c}"
CASES = [
    # an override that is accepted, one that is refused, words of the message
    ("spec.model.policy=p", "spec.model.policy=null", "needs exactly one of policy"),
    ("spec.model.policy=p", "spec.model={policy: p, reward: r, create: {modelType: llama}}", "exactly one"),
    (
        "spec.model.create=null",
        "spec.model={create: {modelType: llama}, reward: r}",
        "the algorithm needs a policy",
    ),
    ("spec.model={policy: p}", "spec.reward={modelWeight: 0}", "nothing scores the answers"),
    ("spec.reward.clip=[-1, 0]", "spec.reward.clip=[1, 1]", "spec.reward.clip"),
    ("spec.ppo.minibatchSize=8", "spec.ppo.minibatchSize=9", "spec.ppo.minibatchSize"),
    ("spec.ppo={minibatchSize: 1}", "spec.ppo={}", "spec.ppo.minibatchSize"),
    *((of(n, "minibatchSize: 8"), of(n, "minibatchSize: 9"), f"spec.{n}.minibatchSize") for n in GRADIENT),
    *((of(n, "minibatchSize: 1"), of(n, "epochs: 2"), f"spec.{n}.minibatchSize") for n in GRADIENT),
    ("spec.trainer.microBatchTokens=768", "spec.trainer.microBatchTokens=767", "microBatchTokens"),
    ("spec.trainer.dtype=bfloat16", "spec.trainer.dtype=float32", "bf16.enabled: set spec.trainer.dtype"),
    (
        "spec.trainer={dtype: float16, deepspeed: {fp16: {enabled: true}}}",
        "spec.trainer.deepspeed={fp16: {enabled: true}}",
        "fp16.enabled: set spec.trainer.dtype",
    ),
    ("spec.environment.A=x", "spec.environment.RLHF_A=x", "begin with RLHF_"),
    ("spec.sampling.topK=-1", "spec.sampling.topK=0", "spec.sampling.topK"),
    ("spec.sampling.minNewTokens=256", "spec.sampling.minNewTokens=257", "minNewTokens"),
    *(
        (
            f"spec.replay={{{name}: {value}}}",
            f"spec.replay={{{name}: {value}, {relay}: {value}}}",
            f"{relay} means",
        )
        for name, relay, value in (
            ("maxReplayEpisode", "maxRelayEpisode", 2),
            ("replayEpisodeOffset", "relayEpisodeOffset", 0),
            ("replaySampleFn", "relaySampleFn", "newest"),
        )
    ),
    (
        "spec.replay={replaySampleFn: newest, samplesPerStep: 4}",
        "spec.replay={relaySampleFn: 'a:b', samplesPerStep: 4}",
        "samplesPerStep is for the built-in samplers",
    ),
    (
        "spec={algorithm: ppo, steps: 1, model: {policy: p, reward: r}, data: {train: [x]}, "
        "replay: {streamDataLoaderType: dynamic}}",
        "spec={algorithm: ppo, steps: 1, model: {policy: p, reward: r}, data: {train: [x]}, "
        "replay: {streamDataLoaderType: dynamic}, generator: {sharedWithTrainer: true}}",
        "dynamic needs generators",
    ),
    ("spec.scheduling={gang: volcano, queue: q}", "spec.scheduling={queue: q}", "scheduling.queue"),
    (
        f"spec.pods.volumes=[{VOLUME}]",
        f"spec.pods.volumes=[{VOLUME}, {{name: more, mountPath: /data, claim: c}}]",
        "two of them have the same mountPath",
    ),
    (
        "spec.reward.pods={gpu: {count: 1}, resources: {requests: {cpu: '1'}}}",
        "spec.reward.pods={gpu: {count: 1}, resources: {requests: {nvidia.com/gpu: '1'}}}",
        "resources.requests names what gpu.count asks for",
    ),
    (
        "spec.reward.pods={gpu: {count: 1, resource: amd.com/gpu}, resources: {limits: {nvidia.com/gpu: '1'}}}",
        "spec.reward.pods={gpu: {count: 1, resource: amd.com/gpu}, resources: {limits: {amd.com/gpu: '1'}}}",
        "resources.limits names what gpu.count asks for",
    ),
    (
        f"spec.generator.pods.volumes=[{VOLUME}]",
        "spec.generator.pods.volumes=[{name: data, mountPath: /data}]",
        "needs exactly one source",
    ),
    (
        "spec.pods.volumes=[{name: data, mountPath: /data, empty: 1Gi}]",
        "spec.pods.volumes=[{name: data, mountPath: /data, empty: 1Gi, secret: s}]",
        "needs exactly one source",
    ),
    (
        f"spec.pods.volumes=[{VOLUME}]",
        "spec.pods.volumes=[{name: tmp, mountPath: /data, claim: c}]",
        "the operator has a volume of that name",
    ),
    (
        "spec.pods.volumes=[{name: data, mountPath: /workspace/data, claim: c}]",
        "spec.pods.volumes=[{name: data, mountPath: /etc/rlhf/x, claim: c}]",
        "every pod has something of its own there",
    ),
    ("spec.pods.tolerations=[{key: k}]", "spec.pods.tolerations=[{value: v}]", "key is required unless"),
    (
        "spec.pods.tolerations=[{operator: Exists}]",
        "spec.pods.tolerations=[{key: k, operator: Exists, value: v}]",
        "operator Exists takes none",
    ),
    (
        "spec.pods.tolerations=[{key: k, effect: NoExecute, tolerationSeconds: 3}]",
        "spec.pods.tolerations=[{key: k, tolerationSeconds: 3}]",
        "NoExecute alone",
    ),
]


@pytest.mark.parametrize(("good", "bad", "words"), CASES, ids=[case[1] for case in CASES])
def test_a_rule_accepts_and_refuses(good: str, bad: str, words: str) -> None:
    parse(document(good))
    assert refusals(document(good)["spec"]) == []
    assert any(words in message for message in refusals(document(bad)["spec"]))
    with pytest.raises(InvalidJob):
        parse(document(bad))


def test_every_rule_has_a_case() -> None:
    rules = [rule.message for rules in RULES.values() for rule in rules if "oldSelf" not in rule.rule]
    assert [m for m in rules if not any(words in m for _, _, words in CASES)] == []


CHANGES = [
    ("spec.algorithm=sft", "spec.algorithm"),
    ("spec.steps=5", "spec.steps"),
    ("spec.seed=1", "spec.seed"),
    ("spec.model.reward=other", "spec.model"),
    ("spec.data.train=[other.jsonl]", "spec.data"),
    ("spec.sampling.topK=6", "spec.sampling"),
    ("spec.ppo.klCoefficient=0.1", "spec.ppo"),
    ("spec.ppo.clipValue=0.1", "spec.ppo"),
    ("spec.replay.maxReplayEpisode=2", "spec.replay"),
    ("spec.optimizer.betas=[0.8, 0.9]", "spec.optimizer"),
    ("spec.evaluation={data: [x], function: 'a:b'}", "spec.evaluation"),
    ("spec.trainer.replicas=2", "spec.trainer"),
    ("spec.trainer.deepspeed.zero_optimization.stage=2", "spec.trainer"),
    ("spec.generator.tensorParallelSize=2", "spec.generator"),
    ("spec.generator.engineArguments.enforce-eager=true", "spec.generator"),
    ("spec.reward.functions=[]", "spec.reward"),
    ("spec.reference.replicas=2", "spec.reference"),
    ("spec.weights.bucketMegabytes=1", "spec.weights"),
    ("spec.checkpoint.store=s3://bucket/other", "spec.checkpoint"),
    ("spec.environment.B=b", "spec.environment"),
    ("spec.pods.template={spec: {dnsPolicy: Default}}", "spec.pods"),
    ("spec.workspace.claim=c", "spec.workspace"),
    ("spec.scheduling.gang=volcano", "spec.scheduling"),
]


DEFAULTS = ("spec.data.promptsPerStep=64", "spec.ppo={}")  # PPO's section may stay with any algorithm
OTHERS = [
    *((of(n, "minibatchSize: 8"), f"spec.{n}.epochs=2", f"spec.{n}") for n in GRADIENT),
    (
        "spec={algorithm: dpo, steps: 4, model: {policy: p}, data: {train: [x]}, dpo: {beta: 0.2}}",
        *("spec.dpo.beta=0.3", "spec.dpo"),
    ),
    (
        "spec={algorithm: 'a.b:c', steps: 4, model: {policy: p, reward: r}, data: {train: [x]}, "
        "custom: {reference: true}}",
        *("spec.custom.settings={beta: 1}", "spec.custom"),
    ),
]


@pytest.mark.parametrize(
    ("base", "change", "where"),
    [*((DEFAULTS, change, where) for change, where in CHANGES), *(((b,), c, w) for b, c, w in OTHERS)],
    ids=[change for *_, change, _ in (*CHANGES, *OTHERS)],
)
def test_a_running_job_cannot_change_and_a_suspended_one_can(base, change: str, where: str) -> None:
    for before, refused in ((document(*base), [where]), (document(*base, "spec.suspend=true"), [])):
        after = document(*base, change)
        assert [m.split()[0] for m in refusals(after["spec"], before["spec"])] == refused
        assert [p.where for p in check_change(parse(before).spec, parse(after).spec)] == refused


def test_every_section_that_cannot_change_has_a_case() -> None:
    rules = [rule.message.split()[0] for rule in RULES["Spec"] if "oldSelf" in rule.rule]
    assert set(rules) == {case[-1] for case in (*CHANGES, *OTHERS)}


@pytest.mark.parametrize(
    "change",
    [
        "spec.suspend=true",
        "spec.generator.replicas=5",
        "spec.activeDeadlineSeconds=60",
        "spec.ttlSecondsAfterFinished=0",
    ],
)
def test_what_a_running_job_may_change(change: str) -> None:
    before, after = document(), document(change)
    assert refusals(after["spec"], before["spec"]) == []
    assert check_change(parse(before).spec, parse(after).spec) == []


def test_a_change_beside_suspending_is_refused() -> None:
    after = document("spec.suspend=true", "spec.steps=5")
    assert [m.split()[0] for m in refusals(after["spec"], document()["spec"])] == ["spec.steps"]
    assert [p.where for p in check_change(job().spec, parse(after).spec)] == ["spec.steps"]


@settings(max_examples=60)
@given(manifests())
def test_what_a_rule_refuses_the_full_checks_refuse(manifest) -> None:
    refused = refusals(manifest["spec"], manifest["spec"])
    try:
        parse(manifest)
    except InvalidJob:
        return
    assert refused == []


@settings(max_examples=30)
@given(manifests(), manifests())
def test_what_changes_in_a_running_job_no_rule_lets_pass(before, after) -> None:
    try:
        old, new = parse(before).spec, parse(after).spec
    except InvalidJob:
        return
    if check_change(old, new):
        assert refusals(after["spec"], before["spec"])
