"""No field without effect: those that a job would not read are refused, each under its own name."""

import json

import pytest
from pydantic.alias_generators import to_camel
from tests.unit.api.manifests import GIVEN, assert_refused, document, job
from tests.unit.trainer.graph.specs import ONLINE

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.manifest.load import from_cluster
from rlhf_api.manifest.runtime import parse_runtime, with_runtime
from rlhf_api.rules.idle import list_idle_fields
from rlhf_operator.commands.plan_table import plan_lines

SFT = ("spec.algorithm=sft", "spec.ppo={}")
GRPO = (
    "spec.algorithm=grpo",
    "spec.ppo={}",
    "spec.grpo.minibatchSize=8",
    "spec.sampling.responsesPerPrompt=2",
)
UNUSED = ("spec.reward={modelWeight: 0, functions: [{function: 'a:b'}]}",)
FREE = ("spec.ppo.klCoefficient=0",)
SHARED = ("spec.generator.sharedWithTrainer=true",)
REFUSED: dict[tuple[str, ...], list[tuple[str, ...]]] = {
    # under what is given: override, place unless it is the overridden field, words: see `assert_refused`
    SFT: [
        ("spec.evaluation={data: [a], function: 'a:b'}", ".function", "sft is evaluated by its loss"),
        (
            "spec.evaluation={data: [a], metrics: [{name: f, program: {command: [sh]}}]}",
            *(".metrics", "sft is evaluated by its loss"),
        ),
        ("spec.evaluation={data: [a], samples: 2}", ".samples", "remove it; got 2"),
        (
            "spec.evaluation={sets: [{name: a, data: [a], temperature: 0}]}",
            ".sets[0].temperature",
            "remove it; got 0",
        ),
        ("spec.trainer.criticMicroBatchTokens=900", "sft trains no critic; remove it; got 900"),
        ("spec.trainer.criticDtype=float32", "sft trains no critic; remove it; got 'float32'"),
        ("spec.weights.timeoutSeconds=9", "the job has none"),
        ("spec.reference.engine=vllm", "the job has none: sft compares with none"),
        ("spec.generator.sharedWithTrainer=true", "samples no resp"),
        (
            "spec.sampling.temperature=0.5",
            "applies only to sampled responses, and the job has none: sft trains on given",
        ),
        ("spec.pretraining={data: [a]}", "sft trains on given ones"),
        (
            "spec.data.curriculum={}",
            "sampled responses with scores, and the job has none: sft trains on given",
        ),
        ("spec.health.logprobDifference=0.1", "remove it; got 0.1"),
        ("spec.reward.scale=2", "applies only to the reward role, and the job has none: sft"),
        ("spec.model.reward=r", "sft scores no responses; remove it; got 'r'"),
        ("spec.model.reference=r", "sft compares with none; remove it"),
    ],
    (): [
        ("spec.replay.replaySampleFn=newest", "maxReplayEpisode; set that, or remove this; got 'newest'"),
        (
            "spec.ppo={minibatchSize: 8, valueMinibatchSize: 6, balanceTokens: true}",
            ".balanceTokens",
            "a step is one update of 8 responses; use a minibatchSize of at most 4",
        ),
        ("spec.replay.samplesPerStep=3", "maxReplayEpisode; set that, or remove this; got 3"),
        ("spec.replay.replayEpisodeOffset=3", "maxReplayEpisode; set that, or remove this; got 3"),
        ("spec.trainer.criticDeepspeed={steps_per_print: 3}", ".steps_per_print", "has no effect"),
        (
            "spec.trainer.criticDeepspeed={optimizer: {type: Adam, params: {lr: 0.1}}}",
            ".optimizer.params.lr",
            "spec.optimizer.criticLearningRate",
        ),
        (
            "spec.trainer.criticDeepspeed={bf16: {enabled: false}}",
            ".bf16.enabled",
            "set spec.trainer.criticDtype to float32, or drop this",
        ),
        (
            "spec.trainer={criticDtype: float32, criticDeepspeed: {bf16: {enabled: true}}}",
            ".criticDeepspeed.bf16.enabled",
            "the critic computes in float32; set spec.trainer.critic",
        ),
        ("spec.reward.microBatchTokens=10", "use at least 768; got 10"),
        ("spec.trainer.deepspeed.steps_per_print=3", "has no effect"),
        ("spec.trainer.deepspeed.activation_checkpointing={partition_activations: true}", "has no effect"),
        (
            "spec.trainer.deepspeed.optimizer={type: Adam, params: {lr: 0.1}}",
            ".params.lr",
            "spec.optimizer.learningRate",
        ),
        (
            "spec.trainer.deepspeed.zero_optimization.stage3_max_live_parameters=1e9",
            "has no effect below stage 3: set zero_opt",
        ),
        (
            "spec.trainer.deepspeed.zero_optimization.zero_quantized_weights=true",
            "or remove this; got stage 1",
        ),
        (
            "spec.trainer.deepspeed.zero_optimization.offload_param={device: cpu}",
            "has no effect below stage 3",
        ),
        (
            "spec.trainer.deepspeed.fp16.loss_scale=0.0",
            "has no effect: enabled is false; set that, or remove this; got 0.0",
        ),
        (
            "spec.trainer={dtype: float32, deepspeed: {zero_optimization: {offload_optimizer: {device: cpu}}}}",
            ".deepspeed.zero_optimization.offload_optimizer",
            "has no effect below stage 1",
        ),
        (
            "spec.trainer.deepspeed.zero_optimization={stage: 2, offload_optimizer: {pin_memory: true}}",
            ".offload_optimizer.pin_memory",
            "has no effect: device is 'none'; set that, or remove this; got true",
        ),
        ("spec.trainer.deepspeed.bf16.enabled=false", "would have no float32 weights"),
        ("spec.reference.tensorParallelSize=2", "engine vllm; use 1"),
        ("spec.reward.engineArguments={quantization: fp8}", "apply only to spec.reward.engine vllm"),
        (
            "spec.reference={engine: vllm, engineArguments: {runner: pooling}}",
            ".engineArguments.runner",
            "is set by the job (the role)",
        ),
        (
            "spec.reward={engine: vllm, fineGrained: true}",
            ".engine",
            "no token classification of language models",
        ),
        (
            "spec.reward={engine: vllm, modelWeight: 0, functions: [{function: 'a:b'}]}",
            ".engine",
            "the job has no reward model",
        ),
        ("spec.ppo.klHorizon=9", "spec.ppo.klTarget is not set; remove it; got 9"),
        ("spec.ppo.overlongPenalty=2", "spec.ppo.overlongBuffer is 0; remove it"),
        (
            "spec.ppo={minibatchSize: 8, klIn: loss, klEstimator: k2, klCorrected: true}",
            ".klCorrected",
            "and another with one; use k1 or k3; got true",
        ),
        (
            "spec.ppo={minibatchSize: 8, klCorrected: true}",
            ".klCorrected",
            "a penalty in the loss, and the job has none: spec.ppo.klIn is reward",
        ),
        (
            "spec.ppo={minibatchSize: 8, entropyTarget: 0.2}",
            ".entropyTarget",
            "an entropy bonus, and the job has none: spec.ppo.entropyCoefficient is 0",
        ),
        ("spec.optimizer.floor=0.1", "falls, and the job has none: spec.optimizer.schedule is constant"),
        ("spec.optimizer.decaySteps=1", "falls, and the job has none: spec.optimizer.schedule is constant"),
        (
            "spec.checkpoint={everySteps: 10, keepEvery: 15}",
            ".keepEvery",
            "must be a multiple of everySteps, 10: only at those steps",
        ),
        ("spec.trainer.deepspeed.optimizer={type: Lion}", ".type", "must be Adam or AdamW; got 'Lion'"),
    ],
    ("spec.model.dtype=float32",): [
        (
            "spec.model.float32Head=true",
            "16 bits, and the job has none: all compute in float32; remove it; got true",
        ),
    ],
    ("spec.algorithm=reward", "spec.ppo={}"): [
        ("spec.model.float32Head=true", "in 16 bits, and the job has none: reward trains another model"),
    ],
    ("spec.replay.streamDataLoaderType=dynamic",): [
        ("spec.ppo={minibatchSize: 4, balanceTokens: true}", ".balanceTokens", "there is no further epoch"),
    ],
    ("spec.ppo.valueMinibatchSize=4",): [
        (
            "spec.replay.streamDataLoaderType=dynamic",
            "the responses of an update are: train_policy 8, train_critic 4; give all the same",
        ),
    ],
    ("spec.ppo.dynamicSampling=2", "spec.sampling={responsesPerPrompt: 4}"): [
        (
            "spec.replay.streamDataLoaderType=dynamic",
            "before all scores of a step are there; without dynamicSampling, or use fixed",
        ),
    ],
    ("spec.ppo={}", "spec.algorithm=grpo"): [
        (
            "spec.trainer.criticDeepspeed.zero_optimization={stage: 2}",
            "spec.trainer.criticDeepspeed",
            'grpo trains no critic; remove it; got {"zero_optimization"',
        ),
    ],
    SHARED: [
        ("spec.weights.everySteps=2", "the job has none"),
        ("spec.generator.replicas=3", "remove it; got 3"),
        ("spec.generator.autoscale={maxReplicas: 2}", "job has none"),
        (
            "spec.generator.engineArguments={a: 1}",
            "applies only to the generator role, and the job has none: the trainer",
        ),
        ("spec.generator.timeoutSeconds=9", "remove it; got 9"),
        ("spec.generator.pods={image: i}", 'remove it; got {"image": "i"}'),
        ("spec.generator.podsPerReplica=2", "remove it; got 2"),
        ("spec.generator.tensorParallelSize=2", "remove it; got 2"),
    ],
    ("spec.sampling.topK=20",): [
        ("spec.reference.engine=vllm", "vLLM's log-probabilities are over all tokens"),
    ],
    GRPO: [
        ("spec.model.critic=c", "applies only to a critic, and the job has none: grpo trains"),
        ("spec.optimizer.criticLearningRate=1", "grpo trains none"),
        ("spec.data.maxResponseLength=9", "applies only to given responses, and the job"),
    ],
    FREE: [
        ("spec.reference.replicas=3", "spec.ppo.klCoefficient is 0; remove"),
        ("spec.model.reference=r", "none: spec.ppo.klCoefficient is 0"),
        ("spec.ppo.klEstimator=k3", "applies only to a reference, and the job has none"),
        ("spec.ppo.klIn=loss", "spec.ppo.klCoefficient is 0; remove it; got 'loss'"),
        ("spec.ppo.klTarget=1", "spec.ppo.klCoefficient is 0; remove it; got 1"),
        ("spec.ppo.referenceEma=0.9", "klCoefficient is 0; remove it; got 0.9"),
    ],
    ("spec.ppo.referenceEma=0.9",): [
        (
            "spec.model.reference=r",
            "the moving average of the policy takes its place (spec.ppo.referenceEma)",
        ),
    ],
    (*GRPO, "spec.model.lora={policy: {}}"): [
        ("spec.reference.dtype=float32", "the policy without its adapter takes its place"),
    ],
    (*GRPO, "spec.model.reward=null"): [
        ("spec.reward.dtype=float32", "not set; remove"),
    ],
    UNUSED: [
        ("spec.reward.dtype=float32", "spec.reward.modelWeight is 0; remove it"),
    ],
    ("spec.sampling={topP: 0.9}",): [
        (
            "spec.health.logprobDifference=0.1",
            "has none: sampling.topP, minP, topK, minNewTokens or structured",
        ),
    ],
    ("spec.rollout={maxStaleness: 1, proximal: sampled}",): [
        ("spec.health.logprobDifference=0.1", "that are compared, and the job has none: rollout.proximal is"),
    ],
    ("spec.evaluation={data: [a], function: 'a:b', everySteps: 7}",): [
        (
            "spec.checkpoint.keepBest=2",
            "make spec.evaluation.everySteps (7) a multiple of checkpoint.everySteps (10)",
        ),
    ],
    (*SFT, "spec.algorithm=dpo"): [
        (
            "spec.dpo={loss: ipo, labelSmoothing: 0.1}",
            ".labelSmoothing",
            "applies only to loss sigmoid and simpo; remove it; got 0.1 with ipo",
        ),
        (
            "spec.dpo={loss: orpo, margin: 0.5}",
            ".margin",
            "applies only to loss sigmoid and simpo; remove it; got 0.5 with orpo",
        ),
    ],
    (*SFT, "spec.algorithm=dpo", "spec.dpo.loss=simpo"): [
        ("spec.model.reference=r", "the job has none: spec.dpo.loss is simpo; remove it"),
    ],
    ("spec.optimizer.epsilon=1e-7",): [
        (
            "spec.trainer.deepspeed.optimizer={type: Adam, params: {eps: 1e-6}}",
            ".params.eps",
            "spec.optimizer.epsilon is 1e-07; make them equal",
        ),
    ],
}


@pytest.mark.parametrize(
    ("given", "case"), [(given, case) for given, cases in REFUSED.items() for case in cases]
)
def test_a_field_without_effect_is_refused(given, case) -> None:
    assert_refused(*case, given=given)


ALL = "spec.ppo.clipRatioHigh, spec.ppo.clipValue, spec.ppo.dualClip, spec.ppo.stopRatio"


@pytest.mark.parametrize(
    ("overrides", "idle"),
    [
        ((), ALL),
        (("spec.ppo.epochs=2",), ""),
        (("spec.ppo.minibatchSize=6",), ALL),  # of 8 responses: one update
        (("spec.ppo.minibatchSize=5",), ""),  # two of 4
        (
            ("spec.ppo.valueMinibatchSize=4",),
            "spec.ppo.clipRatioHigh, spec.ppo.dualClip, spec.ppo.stopRatio",
        ),
        (("spec.ppo.valueEma=0.9",), "spec.ppo.clipRatioHigh, spec.ppo.dualClip, spec.ppo.stopRatio"),
        (("spec.replay.maxReplayEpisode=2",), ""),
        (("spec.weights.everySteps=2",), "spec.ppo.clipValue, spec.ppo.stopRatio"),
        (("spec.rollout={maxStaleness: 1, proximal: sampled}",), "spec.ppo.clipValue, spec.ppo.stopRatio"),
    ],
)
def test_what_a_step_of_one_update_cannot_reach_is_said(overrides, idle) -> None:
    """A warning and no error: other steps of the same manifest may have more updates."""
    bounds = "spec.ppo={minibatchSize: 8, clipRatioHigh: 0.3, dualClip: 3.0, stopRatio: 2.0, clipValue: 0.1}"
    spec = job(bounds, *overrides).spec
    lines = list_idle_fields(spec)
    reason = "a step is one update, of a model that has not moved from what it is compared with"
    assert lines == ([f"no effect: {idle}; {reason}"] if idle else [])
    assert plan_lines(spec) == lines


@pytest.mark.parametrize(
    ("overrides", "acts"), [((), True), (("spec.model.critic=c",), False), (GRPO, False)]
)
def test_a_reward_model_of_no_weight_is_said_unless_a_critic_starts_from_it(overrides, acts) -> None:
    lines = list_idle_fields(job(*UNUSED, *overrides).spec)
    assert lines == ([] if acts else ["no effect: spec.model.reward; spec.reward.modelWeight is 0"])


@pytest.mark.parametrize(
    ("seconds", "chunk", "is_warned"),
    [(300, 120, True), (119, 120, False), (300, 400, False), (30, 20, False)],
)
def test_a_time_for_a_call_that_its_chunk_does_not_have_is_said(seconds, chunk, is_warned) -> None:
    functions = f"[{{function: 'a:b'}}, {{function: 'a:c', timeoutSeconds: {seconds}}}]"
    metrics = f"[{{name: judge, url: 'http://h', timeoutSeconds: {seconds}}}]"
    given = f"spec.reward.functions={functions}", f"spec.evaluation={{data: [a], metrics: {metrics}}}"
    spec = job(*given, f"spec.reward.timeoutSeconds={chunk}").spec
    reason = "spec.reward.timeoutSeconds ends a call with all its retries after 120 s; raise that"
    lines = [
        f"no effect: spec.{place}.timeoutSeconds 300; {reason}"
        for place in ("reward.functions[1]", "evaluation.metrics[0]")
    ]
    assert list_idle_fields(spec) == (lines if is_warned else [])


@pytest.mark.parametrize(("warm", "is_warned"), [(4, False), (5, True)])
def test_a_warm_up_longer_than_the_job_is_said(warm, is_warned) -> None:
    spec = job("spec.steps=4", f"spec.optimizer.warmupSteps={warm}").spec
    line = "spec.optimizer.warmupSteps 5: the job has 4 steps, and none reaches the learning rate"
    assert list_idle_fields(spec) == ([line] if is_warned else [])


@pytest.mark.parametrize(("falls", "is_warned"), [(3, False), (4, True)])
def test_a_decay_longer_than_the_steps_after_the_warm_up_is_said(falls, is_warned) -> None:
    optimizer = f"spec.optimizer={{schedule: linear, warmupSteps: 1, decaySteps: {falls}}}"
    line = "spec.optimizer.decaySteps 4: 3 steps follow the warm-up, and the rate falls in all"
    assert list_idle_fields(job("spec.steps=4", optimizer).spec) == ([line] if is_warned else [])


@pytest.mark.parametrize(
    ("settings", "weak"), [("", ""), (", klIn: reward", "k3"), (", klIn: reward, klEstimator: k1", "")]
)
def test_an_estimator_that_holds_nothing_back_as_a_reward_is_said(settings, weak) -> None:
    section = f"spec.grpo={{minibatchSize: 4, klCoefficient: 0.1{settings}}}"
    lines = list_idle_fields(
        job("spec.algorithm=grpo", "spec.ppo={}", "spec.sampling={responsesPerPrompt: 2}", section).spec
    )
    assert [f"as a reward, {weak}" in line and "spec.grpo.klEstimator k1" in line for line in lines] == [
        True
    ] * bool(weak)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "a.b:c"])
@pytest.mark.parametrize("shared", [False, True])
def test_defaults_that_are_written_out_are_harmless(algorithm, shared) -> None:
    """A cluster stores all of them."""
    own = {"minibatchSize": 8} if algorithm in ONLINE else {}
    generates = algorithm not in GIVEN
    overrides = [f"spec.algorithm={algorithm}", "spec.ppo={}"]
    overrides += [f"spec.{to_camel(algorithm)}={json.dumps(own)}"] if own else []
    overrides += ["spec.sampling={responsesPerPrompt: 2}"] if generates else []
    overrides += ["spec.generator.sharedWithTrainer=true"] if shared and generates else []
    overrides += ["spec.model.reference=org/teacher"] if algorithm == "distillation" else []
    spec = job(*overrides).spec
    stored = {**document(), "spec": spec.model_dump(mode="json", by_alias=True)}
    assert from_cluster(stored).spec == spec


def test_a_runtime_may_speak_of_roles_that_a_job_has_not() -> None:
    runtime = parse_runtime(
        {
            "apiVersion": "rlhf.dev/v1alpha1",
            "kind": "ClusterRLHFRuntime",
            "metadata": {"name": "h100"},
            "spec": {"generator": {"pods": {"sharedMemory": "1Gi"}}, "trainer": {"pods": {"image": "i"}}},
        }
    )
    outcome = with_runtime(job(*SFT, "spec.runtime={name: h100}").spec, runtime)
    assert outcome.trainer.pods.image == "i"
    assert outcome.generator == type(outcome.generator)()
