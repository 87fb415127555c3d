"""Cases of the CEL rules, as overrides of a valid manifest (`manifests.document`)."""

from typing import Any

from pydantic.alias_generators import to_camel

from rlhf_api.algorithms import ALGORITHMS

VOLUME = "{name: data, mountPath: /data, claim: c}"
UPDATING = [n for n, a in ALGORITHMS.items() if a.settings and "minibatch_size" in a.settings.model_fields]
SMALL = (
    "spec={{algorithm: {name}, steps: 1, model: {{policy: p, reward: r{more}}}, "
    "data: {{train: [x], promptsPerStep: 8}}, sampling: {{responsesPerPrompt: 2}}, {key}: {{minibatchSize: {size}}}}}"
)


def small(name: str, size: int) -> str:
    more = ", reference: t" if name == "distillation" else ""
    return SMALL.format(name=name, key=to_camel(name), size=size, more=more)


SHARED = (
    "spec={algorithm: ppo, steps: 1, model: {policy: p, reward: r}, data: {train: [x]}, "
    "replay: {streamDataLoaderType: dynamic}"
)
EPISODES = "spec={algorithm: ppo, steps: 1, model: {policy: p}, data: {train: [x]}"
CASES = [
    # an override that is accepted, one that is refused, words of the message
    ("spec.model.policy=p", "spec.model.policy=null", "needs exactly one of policy"),
    (
        "spec.model.policy=p",
        "spec.model={policy: p, reward: r, create: {modelType: llama}}",
        "exactly one of policy",
    ),
    (
        "spec.model.create=null",
        "spec.model={create: {modelType: llama}, reward: r}",
        "the algorithm needs a policy",
    ),
    ("spec.model={policy: p}", "spec.reward={modelWeight: 0}", "nothing scores the answers"),
    (
        f"{EPISODES}, reward: {{models: [{{name: a, model: m}}]}}}}",
        f"{EPISODES}, reward: {{models: []}}}}",
        "nothing scores the answers",
    ),
    (f"{EPISODES}, environment: {{path: 'a:b'}}}}", f"{EPISODES}, env: {{path: 'a:b'}}}}", "nothing scores"),
    (
        f"{EPISODES}, environment: {{program: [a]}}}}",
        f"{EPISODES}, environment: {{A: a}}}}",
        "nothing scores",
    ),
    ("spec.reward.clip=[-1, 0]", "spec.reward.clip=[1, 1]", "spec.reward.clip"),
    *(
        (
            small(name, 16),
            small(name, 17),
            "minibatchSize of the algorithm's settings must not exceed",
        )
        for name in UPDATING
    ),
    ("spec.ppo={minibatchSize: 1}", "spec.ppo={}", "minibatchSize of the algorithm's settings"),
    ("spec.trainer.microBatchTokens=768", "spec.trainer.microBatchTokens=767", "microBatchTokens"),
    (
        "spec.environment={path: 'a:b', maxTokens: 15872}",
        *("spec.environment={path: 'a:b', maxTokens: 15873}", "or environment.maxTokens"),
    ),
    (
        "spec.trainer={processesPerReplica: 2, microBatchTokens: 384, sequenceParallelSize: 2}",
        "spec.trainer={processesPerReplica: 2, microBatchTokens: 383, sequenceParallelSize: 2}",
        "microBatchTokens, times sequenceParallelSize",
    ),
    ("spec.trainer.dtype=bfloat16", "spec.trainer.dtype=float32", "bf16.enabled: set spec.trainer.dtype"),
    (
        "spec.trainer={dtype: float16, deepspeed: {fp16: {enabled: true}}}",
        "spec.trainer.deepspeed={fp16: {enabled: true}}",
        "fp16.enabled: set spec.trainer.dtype",
    ),
    (
        "spec.trainer={criticDtype: float32, deepspeed: {bf16: {enabled: true}}}",
        "spec.trainer={criticDtype: float32, criticDeepspeed: {bf16: {enabled: true}}}",
        "criticDeepspeed.bf16.enabled: set spec.trainer.criticDtype",
    ),
    (
        "spec.trainer={dtype: float16, criticDeepspeed: {fp16: {enabled: true}}}",
        "spec.trainer.criticDeepspeed={fp16: {enabled: true}}",
        "criticDeepspeed.fp16.enabled: set spec.trainer.criticDtype",
    ),
    ("spec.env.A=x", "spec.env.RLHF_A=x", "begin with RLHF_"),
    (
        "spec.generator.autoscale={minReplicas: 4, maxReplicas: 4}",
        *("spec.generator.autoscale={minReplicas: 5, maxReplicas: 4}", "minReplicas"),
    ),
    (
        "spec.reward={engine: vllm, tensorParallelSize: 2}",
        *("spec.reward={tensorParallelSize: 2}", "tensorParallelSize applies only to engine vllm"),
    ),
    (
        "spec.reference={tensorParallelSize: 1}",
        "spec.reference={tensorParallelSize: 2}",
        "applies only to engine vllm",
    ),
    ("spec.sampling.minNewTokens=256", "spec.sampling.minNewTokens=257", "minNewTokens"),
    (
        "spec.replay={replaySampleFn: newest, samplesPerStep: 4, maxReplayEpisode: 2}",
        "spec.replay={replaySampleFn: 'a:b', samplesPerStep: 4, maxReplayEpisode: 2}",
        "samplesPerStep is for the built-in samplers",
    ),
    (
        f"{SHARED}}}",
        f"{SHARED}, generator: {{sharedWithTrainer: true}}}}",
        "dynamic needs generators",
    ),
    ("spec.scheduling={gang: volcano, queue: q}", "spec.scheduling={queue: q}", "scheduling.queue"),
    (
        f"spec.pods.volumes=[{VOLUME}]",
        f"spec.pods.volumes=[{VOLUME}, {{name: more, mountPath: /data, claim: c}}]",
        "two of them have the same mountPath",
    ),
    (
        "spec.reward.pods={gpu: {count: 1, deviceClass: gpu.nvidia.com}}",
        "spec.reward.pods={gpu: {count: 1, deviceClass: gpu.nvidia.com, resource: amd.com/gpu}}",
        "deviceClass claims the GPUs in place of resource",
    ),
    (
        "spec.reward.pods={gpu: {count: 1}, resources: {requests: {cpu: '1'}}}",
        "spec.reward.pods={gpu: {count: 1}, resources: {requests: {nvidia.com/gpu: '1'}}}",
        "resources names what gpu.count asks for",
    ),
    (
        "spec.reward.pods={gpu: {count: 1, resource: amd.com/gpu}, resources: {limits: {nvidia.com/gpu: '1'}}}",
        "spec.reward.pods={gpu: {count: 1, resource: amd.com/gpu}, resources: {limits: {amd.com/gpu: '1'}}}",
        "resources names what gpu.count asks for",
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

RUNNING = "while a job runs, its spec can change in generator.replicas, suspend,"
CHANGES = [
    ("spec.algorithm=a.b:c", "spec.algorithm"),
    ("spec.steps=5", "spec.steps"),
    ("spec.seed=1", "spec.seed"),
    ("spec.model.reward=other", "spec.model"),
    ("spec.data.train=[other.jsonl]", "spec.data"),
    ("spec.sampling.topK=6", "spec.sampling"),
    *((f"spec.{to_camel(name)}.minibatchSize=4", f"spec.{to_camel(name)}") for name in UPDATING),
    ("spec.dpo.beta=0.5", "spec.dpo"),
    ("spec.kto.beta=0.5", "spec.kto"),
    ("spec.rewardModel.centering=0.5", "spec.rewardModel"),
    ("spec.custom.settings={a: 1}", "spec.custom"),
    ("spec.pretraining={data: [x]}", "spec.pretraining"),
    ("spec.ppo.clipValue=0.1", "spec.ppo"),
    ("spec.replay.maxReplayEpisode=2", "spec.replay"),
    ("spec.rollout.maxStaleness=1", "spec.rollout"),
    ("spec.optimizer.betas=[0.8, 0.9]", "spec.optimizer"),
    ("spec.experts={balanceCoefficient: 0.01}", "spec.experts"),
    ("spec.evaluation={data: [x], function: 'a:b'}", "spec.evaluation"),
    ("spec.evaluation={data: [x], metrics: [{name: a, url: 'http://h'}]}", "spec.evaluation"),
    ("spec.health={notFinite: rollback}", "spec.health"),
    ("spec.trackers=[{kind: wandb}]", "spec.trackers"),
    ("spec.runtime={name: h100}", "spec.runtime"),
    ("spec.trainer.replicas=2", "spec.trainer"),
    ("spec.trainer.deepspeed.zero_optimization.stage=2", "spec.trainer"),
    ("spec.generator.tensorParallelSize=2", "spec.generator"),
    ("spec.generator.engineArguments.enforce-eager=true", "spec.generator"),
    ("spec.reward.functions=[]", "spec.reward"),
    ("spec.reference.replicas=2", "spec.reference"),
    ("spec.weights.bucketMegabytes=1", "spec.weights"),
    ("spec.checkpoint.store=s3://bucket/other", "spec.checkpoint"),
    ("spec.export.everySteps=5", "spec.export"),
    ("spec.samples.promptsPerStep=3", "spec.samples"),
    ("spec.env.B=b", "spec.env"),
    ("spec.environment={path: 'a:b'}", "spec.environment"),
    ("spec.environment={path: 'a:b', replicas: 2}", "spec.environment"),
    ("spec.sandbox={pods: {image: i}}", "spec.sandbox"),
    ("spec.pods.template={spec: {dnsPolicy: Default}}", "spec.pods"),
    ("spec.workspace.claim=c", "spec.workspace"),
    ("spec.scheduling.gang=volcano", "spec.scheduling"),
    ("spec.placement=separate", "spec.placement"),
]
"""Of a running job: an override that is refused, and the section that the full checks name."""
ALLOWED = [
    "spec.suspend=true",
    "spec.generator.replicas=5",
    "spec.activeDeadlineSeconds=60",
    "spec.ttlSecondsAfterFinished=0",
]
"""Of a running job: overrides that are accepted."""


def failed(reason: str) -> dict[str, Any]:
    """The status of a job that has failed."""
    since = "2026-01-01T00:00:00Z"
    condition = {"type": "Failed", "status": "True", "reason": reason, "lastTransitionTime": since}
    return {"phase": "Failed", "totalSteps": 0, "conditions": [condition]}
