"""What a manifest accepts acts: fields that this job would not read are refused, each under its own name."""

import pytest
from tests.api.manifests import job

from rlhf_api.problems import InvalidJob

SFT = ("spec.algorithm=sft", "spec.ppo={}")
SHARED = ("spec.generator.sharedWithTrainer=true",)
REFUSED = [
    (
        (*SFT, "spec.evaluation={data: [a], function: 'a:b'}"),
        "spec.evaluation.function",
        "sft is judged by its loss",
    ),
    ((*SFT, "spec.evaluation={data: [a], samples: 2}"), "spec.evaluation.samples", "remove it; got 2"),
    (
        (*SFT, "spec.evaluation={sets: [{name: a, data: [a], temperature: 0}]}"),
        *("spec.evaluation.sets[0].temperature", "remove it; got 0"),
    ),
    (
        ("spec.replay.replaySampleFn=newest",),
        "spec.replay.replaySampleFn",
        "maxReplayEpisode only; got 'newest'",
    ),
    (
        ("spec.replay.relaySampleFn=newest",),
        "spec.replay.relaySampleFn",
        "maxReplayEpisode only; got 'newest'",
    ),
    (
        ("spec.ppo={minibatchSize: 8, valueMinibatchSize: 5, balanceTokens: true}",),
        *("spec.ppo.balanceTokens", "a step is one update of 8 responses; use a minibatchSize of at most 4"),
    ),
    (
        ("spec.ppo={minibatchSize: 4, balanceTokens: true}", "spec.replay.streamDataLoaderType=dynamic"),
        *("spec.ppo.balanceTokens", "there is no further epoch"),
    ),
    (
        ("spec.replay.streamDataLoaderType=dynamic", "spec.ppo.valueMinibatchSize=4"),
        "spec.replay.streamDataLoaderType",
        "the responses of an update are: train_policy 8, train_critic 4; give all the same",
    ),
    (
        (
            "spec.replay.streamDataLoaderType=dynamic",
            "spec.ppo.dynamicSampling=2",
            "spec.sampling={answersPerPrompt: 4}",
        ),
        "spec.replay.streamDataLoaderType",
        "before all scores of a step are there; without dynamicSampling, or use fixed",
    ),
    (("spec.replay.samplesPerStep=3",), "spec.replay.samplesPerStep", "maxReplayEpisode only; got 3"),
    (
        ("spec.replay.replayEpisodeOffset=3",),
        "spec.replay.replayEpisodeOffset",
        "maxReplayEpisode only; got 3",
    ),
    (
        (*SFT, "spec.trainer.criticMicroBatchTokens=900"),
        *("spec.trainer.criticMicroBatchTokens", "sft trains no critic; remove it; got 900"),
    ),
    (
        (*SFT, "spec.trainer.criticDtype=float32"),
        *("spec.trainer.criticDtype", "sft trains no critic; remove it; got 'float32'"),
    ),
    (
        ("spec.ppo={}", "spec.algorithm=grpo", "spec.trainer.criticDeepspeed.zero_optimization={stage: 2}"),
        *("spec.trainer.criticDeepspeed", 'grpo trains no critic; remove it; got {"zero_optimization"'),
    ),
    (
        ("spec.trainer.criticDeepspeed={steps_per_print: 3}",),
        *("spec.trainer.criticDeepspeed.steps_per_print", "has no effect"),
    ),
    (
        ("spec.trainer.criticDeepspeed={optimizer: {type: Adam, params: {lr: 0.1}}}",),
        *("spec.trainer.criticDeepspeed.optimizer.params.lr", "spec.optimizer.criticLearningRate"),
    ),
    (
        ("spec.trainer.criticDeepspeed={bf16: {enabled: false}}",),
        *(
            "spec.trainer.criticDeepspeed.bf16.enabled",
            "set spec.trainer.criticDtype to float32, or drop this",
        ),
    ),
    (
        ("spec.trainer={criticDtype: float32, criticDeepspeed: {bf16: {enabled: true}}}",),
        *(
            "spec.trainer.criticDeepspeed.bf16.enabled",
            "the critic computes in float32; set spec.trainer.critic",
        ),
    ),
    (
        ("spec.reward.microBatchTokens=10",),
        *("spec.reward.microBatchTokens", "use at least 768; got 10"),
    ),
    (
        ("spec.trainer.deepspeed.steps_per_print=3",),
        "spec.trainer.deepspeed.steps_per_print",
        "has no effect",
    ),
    (
        ("spec.trainer.deepspeed.activation_checkpointing={partition_activations: true}",),
        *("spec.trainer.deepspeed.activation_checkpointing", "has no effect"),
    ),
    (
        ("spec.trainer.deepspeed.optimizer={type: Adam, params: {lr: 0.1}}",),
        *("spec.trainer.deepspeed.optimizer.params.lr", "spec.optimizer.learningRate"),
    ),
    (
        ("spec.trainer.deepspeed.bf16.enabled=false",),
        *("spec.trainer.deepspeed.bf16.enabled", "would have no float32 weights"),
    ),
    ((*SHARED, "spec.weights.everySteps=2"), "spec.weights", "the job has none"),
    ((*SFT, "spec.weights.timeoutSeconds=9"), "spec.weights", "the job has none"),
    ((*SHARED, "spec.generator.replicas=3"), "spec.generator.replicas", "use 1; got 3"),
    ((*SHARED, "spec.generator.autoscale={maxReplicas: 2}"), "spec.generator.autoscale", "job has none"),
    (("spec.reference.tensorParallelSize=2",), "spec.reference.tensorParallelSize", "engine vllm; use 1"),
    (
        ("spec.reward.engineArguments={quantization: fp8}",),
        *("spec.reward.engineArguments", "are of spec.reward.engine vllm"),
    ),
    (
        ("spec.reference={engine: vllm, engineArguments: {runner: pooling}}",),
        *("spec.reference.engineArguments.runner", "is set by the job (the role)"),
    ),
    ((*SFT, "spec.reference.engine=vllm"), "spec.reference.engine", "no reference of its own"),
    (
        ("spec.reference.engine=vllm", "spec.sampling.topK=20"),
        *("spec.reference.engine", "vLLM's log-probabilities are over all tokens"),
    ),
    (
        ("spec.reward={engine: vllm, fineGrained: true}",),
        *("spec.reward.engine", "no token classification of language models"),
    ),
    (
        ("spec.reward={engine: vllm, modelWeight: 0, functions: [{function: 'a:b'}]}",),
        *("spec.reward.engine", "the job has no reward model"),
    ),
    ((*SHARED, "spec.generator.podsPerReplica=2"), "spec.generator.podsPerReplica", "use 1; got 2"),
    ((*SHARED, "spec.generator.tensorParallelSize=2"), "spec.generator.tensorParallelSize", "use 1; got 2"),
]


@pytest.mark.parametrize(("overrides", "where", "says"), REFUSED)
def test_a_field_without_effect_is_refused(overrides, where, says) -> None:
    with pytest.raises(InvalidJob) as caught:
        job(*overrides)
    assert says in {problem.where: problem.message for problem in caught.value.problems}[where]
