"""Every leaf of the schema of a manifest's `spec`, a manifest in which it acts, and values that differ."""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic.alias_generators import to_camel
from tests.unit.api.schema.rules import SPEC

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.roles import Role

Schema = dict[str, Any]
ROLES = [role.value for role in Role]


def leaves(schema: Schema = SPEC, at: str = "spec") -> Iterator[tuple[str, Schema]]:
    """Places as overrides write them, down to scalars, maps, and lists of scalars; an object in a list as `[0]`. Former
    names of fields are those of tests/unit/api/manifest/test_spelling.py."""
    if "properties" in schema:
        for name, inner in schema["properties"].items():
            if not inner.get("description", "").startswith("Former name of"):
                yield from leaves(inner, f"{at}.{name}")
    elif schema.get("type") == "array" and "properties" in schema["items"]:
        yield from leaves(schema["items"], f"{at}[0]")
    else:
        yield at, schema


def others(schema: Schema, now: Any) -> list[Any]:
    """Values of its type that are not the present one."""
    if "enum" in schema:
        return [value for value in schema["enum"] if value != now]
    match schema.get("type"):
        case "boolean":
            return [value for value in (True, False) if value != now]
        case "integer":
            low, high = schema.get("minimum", 0), schema.get("maximum", 2**31)
            near = [now * 2, now + 1, now - 1] if isinstance(now, int) else []
            return [n for n in [*near, 3, 2, 1, low, low + 20] if low <= n <= high and n != now]
        case "number":
            low, high = schema.get("minimum", 0.0), schema.get("maximum", 1e9)
            near = [now / 2, now * 2] if isinstance(now, int | float) else []
            return [n for n in [*near, 0.5, 1.5, 7e9] if low <= n <= high and n != now]
        case "array":
            return [[value] for value in others(schema["items"], None)][:3]
        case "object":
            return [{"a": "1"}, {"a": 1}, {}]
    return ["x", "/x", "1Gi", "s3://x/y"]


def keys(at: str) -> list[str]:
    return at.replace("[0]", ".[0]").split(".")


def value(made: Any, at: str) -> Any:
    """The value at a place of a document; None without one."""
    for key in keys(at):
        made = made[0] if key == "[0]" and made else made.get(key) if isinstance(made, dict) else None
    return made


def changed(made: Any, way: list[str], to: Any) -> Any:
    """A copy of a document, or of a part of it, that says `to` at the end of the way."""
    if not way:
        return to
    key, *rest = way
    if key == "[0]":
        return [changed(made[0], rest, to)]
    return {**(made or {}), key: changed((made or {}).get(key), rest, to)}


_GROUPED = [
    (to_camel(name), name)
    for name, algorithm in ALGORITHMS.items()
    if algorithm.settings and name not in ("ppo", "dpo", "kto", "reward")
]


def _algorithm(name: str, *more: str, **settings: object) -> tuple[str, ...]:
    own = [f"spec.{to_camel(name)}={json.dumps(settings)}"] if settings else []
    offline = ("sft", "dpo", "kto", "reward", "process_reward")
    given = ("spec.sampling={}", "spec.model.reward=null") if name in offline else ()
    return ("spec.ppo={}", f"spec.algorithm={name}", *own, *given, *more)


_ONLINE = {"minibatchSize": 8, "klCoefficient": 0.1, "overlongBuffer": 3}


def _own(name: str) -> dict[str, Any]:
    """Those of `_ONLINE` that the algorithm has."""
    settings = ALGORITHMS[name].settings
    fields = settings.model_fields.values() if settings else ()
    return {key: value for key, value in _ONLINE.items() if key in {field.alias for field in fields}}


_GPU = "gpu: {count: 1, memoryGigabytes: 800}"
_TOLERATION = "tolerations: [{key: a, value: b, effect: NoExecute}]"
_EXISTS = "tolerations: [{key: a, operator: Exists, effect: NoExecute}]"
_RULE = "failureRules=[{action: Ignore, exitCodes: [1], reasons: [OOMKilled]}]"
_PROGRAM = "{name: f, program: {command: [sh]}}"
_HELD_OUT = "data: [rows-prompts.jsonl]"
_ANY = r"spec\.(\w+\.)?pods\."


def _pods(at: str) -> tuple[str, ...]:
    """Pod settings of all roles or of one, at the leaf's own section."""
    section, last = at.partition("pods.")[0] + "pods", at.rpartition(".")[2]
    source = last if last in ("configMap", "secret", "hostPath", "empty") else "claim"
    has = {"hostPath": "/a", "empty": "1Gi"}.get(source, "c")
    tolerations = _EXISTS if last == "operator" else _TOLERATION
    gpu = "" if last == "count" else f", {_GPU}"
    image = "image: i, " if "sandbox" in section else ""
    gpu = ", gpu: {count: 1}" if image and gpu else gpu
    return (
        f"{section}={{{image}{tolerations}, volumes: [{{name: v, mountPath: /v, {source}: {has}}}]{gpu}}}",
    )


def _deepspeed(section: str, dtype: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Of the leaves of a trained model's DeepSpeed section; `dtype` names the field beside it."""
    where = f"spec.trainer.{section}"
    for stage, part in ((2, "offload_optimizer"), (3, "offload_param")):
        zero = f"{where}.zero_optimization={{stage: {stage}, {part}: {{device: cpu}}}}"
        yield rf"trainer\.{section}\..*{part}", (zero,)
    yield (
        rf"trainer\.{section}\..*\.(stage3_|zero_\w+_|sub_gr|memory_e|log_t)",
        (f"{where}.zero_optimization.stage=3",),
    )
    half = f"spec.trainer={{{dtype}: float16, {section}: {{fp16: {{enabled: true}}}}}}"
    yield rf"trainer\.{section}\.fp16", (half,)
    yield rf"trainer\.{section}\.optimizer", (f"{where}.optimizer={{type: Adam}}",)
    away = f"{where}.zero_optimization={{stage: 2, offload_optimizer: {{device: cpu}}}}"
    yield rf"trainer\.{section}\..*fp32_optimizer_states", (away,)
    own = f"{where}.optimizer={{type: AdamW}}"
    whole = f"{where}.zero_optimization={{stage: 3, offload_optimizer: {{device: cpu, super_offload: true}}}}"
    yield rf"trainer\.{section}\..*\.(ratio|super_offload|cpuadam)", (whole, own)
    yield rf"trainer\.{section}\.(fp16.fp16_m|bf16.bf16|zero_force)", (away, own)
    half = f"{where}.bf16={{enabled: true, bf16_master_weights_and_grads: true}}"
    yield rf"trainer\.{section}\.bf16.bf16_optimizer_states", (half,)


_TAUGHT = _algorithm(
    "distillation",
    *(
        "spec.distillation={minibatchSize: 8, teachers: [{name: a, model: policy}, {name: b, model: policy}]}",
    ),
    *("spec.model={policy: policy, parameters: 1e9}", "spec.reward={}"),
    "spec.data={promptsPerStep: 8, sources: [{path: rows-prompts.jsonl, teacher: a}, "
    "{path: more-prompts.jsonl, teacher: b}]}",
)


BASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    *((rf"spec\.{camel}\.", _algorithm(name, **_own(name))) for camel, name in _GROUPED),
    (r"spec\.distillation\.", ("spec.model.reference=org/teacher",)),
    (r"spec\.ppo\.", tuple(f"spec.ppo.{key}={value}" for key, value in _ONLINE.items())),
    (r"\.sampling\.thinking\.", ("spec.sampling={maxNewTokens: 5, thinking: {budget: 2, end: x}}",)),
    (r"\.distillation\.beta$", ("spec.distillation.teacherTopK=8",)),
    (
        r"\.distillation\.givenShare$",
        (
            *("spec.distillation.teacherTopK=8", "spec.distillation.givenShare=0.25"),
            *("spec.distillation.overlongBuffer=0", "spec.data.train=[rows-answers.jsonl]"),
            *(
                "spec.data.maxResponseLength=5",
                "spec.sampling.responsesPerPrompt=1",
                "spec.model.reward=null",
            ),
        ),
    ),
    (r"\.distillation\.teachers$", _TAUGHT),
    (r"\.(klHorizon)$", ("spec.{}.klTarget=0.5",)),
    (r"\.normalize$", ("spec.{}.klIn=loss", "spec.reward.functions=[{function: 'a:b'}]")),
    (r"\.klCorrected$", ("spec.{}.klIn=loss", "spec.{}.klEstimator=k3")),
    (r"\.entropyTarget$", ("spec.{}.entropyCoefficient=0.1",)),
    (r"spec\.dpo\.", _algorithm("dpo", "spec.data.train=[rows-pairs.jsonl]", "spec.sampling={}")),
    (r"spec\.rewardModel\.", _algorithm("reward", "spec.data.train=[rows-pairs.jsonl]")),
    (r"rewardModel\.margins$", ("spec.data.train=[rows-graded.jsonl]",)),
    (r"spec\.kto\.", _algorithm("kto", "spec.data.train=[rows-labeled.jsonl]", "spec.sampling={}")),
    (r"spec\.custom\.", _algorithm("best_of_n:ALGORITHM", "spec.custom={settings: {minibatchSize: 8}}")),
    (r"custom\.scores", ("spec.custom.critic=true",)),  # which then starts from the reward model
    (r"custom\.rows", ("spec.custom.scores=false", "spec.model={policy: policy, parameters: 1e9}")),
    *((rf"spec\.{role}\.failureRules", (f"spec.{role}.{_RULE}",)) for role in ROLES),
    (r"spec\.trackers", ("spec.trackers=[{kind: trackio, project: p}]",)),
    (r"spec\.health", ("spec.health={rules: [{metric: kl_mean, above: 4.0, action: rollback}]}",)),
    (
        r"spec\.health.*(deviations|window)",
        ("spec.health.rules[0].deviationsAbove=1.5", "spec.health.rules[0].window=3"),
    ),
    (r"spec\.scheduling\.queue", ("spec.scheduling.gang=volcano",)),
    (r"spec\.runtime", ("spec.runtime={name: r}",)),
    (r"spec\.evaluation", ("spec.evaluation={data: [rows-prompts.jsonl], function: 'a:b'}",)),
    (
        r"spec\.evaluation.sets",
        ("spec.evaluation={sets: [{name: a, data: [rows-prompts.jsonl]}], function: 'a:b'}",),
    ),
    (r"evaluation\.metrics", (f"spec.evaluation={{{_HELD_OUT}, metrics: [{{name: f, function: 'a:b'}}]}}",)),
    (r"metrics.*program", (f"spec.evaluation={{{_HELD_OUT}, metrics: [{_PROGRAM}]}}",)),
    (
        r"metrics.*(url|secretHeaders)",
        (f"spec.evaluation={{{_HELD_OUT}, metrics: [{{name: f, url: 'http://h/p'}}]}}",),
    ),
    (
        r"metrics.*model$",
        (
            "spec.reward.models=[{name: x, model: policy}]",
            f"spec.evaluation={{{_HELD_OUT}, metrics: [{{name: f, model: model}}]}}",
        ),
    ),
    (r"experts\.replay", ("spec.rollout.importance=token",)),
    (r"optimizer\.(floor|decaySteps)", ("spec.optimizer.schedule=linear",)),
    (r"keepBest", ("spec.evaluation={data: [rows-prompts.jsonl], function: 'a:b'}",)),
    (r"spec\.environment", ("spec.environment={path: 'a:B'}",)),
    (r"environment\.program", ("spec.environment={program: [a]}",)),
    (r"environment\.(backoff|startup|pods)", ("spec.environment={path: 'a:B', replicas: 2}",)),
    (
        r"environment\.failureRules",
        (f"spec.environment={{path: 'a:B', replicas: 2, {_RULE.replace('=', ': ')}}}",),
    ),
    (r"spec\.sandbox", ("spec.environment={path: 'a:B'}", "spec.sandbox={pods: {image: i}}")),
    (r"sandbox\.failureRules", (f"spec.sandbox={{pods: {{image: i}}, {_RULE.replace('=', ': ')}}}",)),
    (r"spec\.pretraining", ("spec.pretraining={data: [rows-answers.jsonl]}",)),
    (
        r"spec\.model\.create",
        _algorithm(
            "sft",
            "spec.model={create: {modelType: llama, config: {hidden_size: 8, "
            "intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2}}}",
            "spec.data.train=[rows-answers.jsonl]",
        ),
    ),
    (
        r"trainVision|maxPixels",
        _algorithm("sft", "spec.model={policy: vision}", "spec.data.train=[rows-images.jsonl]"),
    ),
    (r"maxPixels", ("spec.data.overlong=drop", "spec.data.maxPromptLength=99", "spec.data.maxPixels=1024")),
    (r"spec\.model\.lora", ("spec.model.lora={policy: {rank: 2, alpha: 3}, critic: {rank: 2, alpha: 3}}",)),
    (r"spec\.model\.parameters", ("spec.model={policy: org/policy, reward: org/reward, parameters: 1e9}",)),
    (r"(model|trainer)\.dtype", ("spec.trainer={}",)),
    (r"float32Head", ("spec.model.dtype=bfloat16",)),
    (r"spec\.algorithm", ("spec.ppo={}", "spec.data.promptsPerStep=64")),
    (r"\.klIn$", ("spec.{}.klEstimator=k3",)),
    (r"maxResponseLength", _algorithm("sft", "spec.data.train=[rows-answers.jsonl]")),
    (
        r"spec\.data\.sources",
        (
            "spec.data={promptsPerStep: 8, sources: [{path: rows-prompts.jsonl, weight: 1.0}, "
            "{path: more-prompts.jsonl, weight: 1.0}]}",
        ),
    ),
    (r"sources\[0\]\.teacher$", _TAUGHT),
    (r"data\.curriculum", ("spec.data.curriculum={window: 2, floor: 0.2, solvedAt: 0.5}",)),
    (r"stepSeparator", _algorithm("process_reward", "spec.data.train=[rows-steps.jsonl]")),
    (r"samplesPerEpoch", ("spec.data.train=[rows-prompts.jsonl, more-prompts.jsonl]",)),
    (
        r"[Cc]hatTemplate|systemPrompt",
        ("spec.data.chatTemplate='{% for m in messages %}{{ m.content }};{% endfor %}'",),
    ),
    (
        r"chatTemplateKwargs",
        (
            "spec.data.chatTemplate='{{ a }}{% for m in messages %}{{ m.content }};{% endfor %}'",
            *("spec.data.systemPrompt=S", "spec.data.maxPromptLength=99"),
        ),
    ),
    (r"spec\.replay\.(?!stream)", ("spec.replay={maxReplayEpisode: 3}",)),
    (r"spec\.rollout", ("spec.rollout={maxStaleness: 1}", "spec.sampling.topK=0")),
    (r"spec\.rollout\.importance", ("spec.rollout={importance: token}",)),
    (r"spec\.rollout\.oversampling", ("spec.rollout={oversampling: 0.5}",)),
    (r"spec\.reward\.models", ("spec.reward.models=[{name: m, model: policy}]",)),
    (r"spec\.reward\.functions", ("spec.reward.functions=[{function: 'a:b', name: f}]",)),
    (r"reward\.stepScores$", ("spec.reward.stepScores=min",)),
    (r"functions.*program", (f"spec.reward.functions=[{_PROGRAM}]",)),
    (r"functions.*(url|secretHeaders)", ("spec.reward.functions=[{name: f, url: 'http://h/p'}]",)),
    (r"startFrom", ("spec.checkpoint.startFrom={store: 's3://x/z', step: 2}",)),
    *_deepspeed("deepspeed", "dtype"),
    (
        r"criticDeepspeed",
        ("spec.trainer.criticDeepspeed={zero_optimization: {stage: 1}, bf16: {enabled: true}}",),
    ),
    *_deepspeed("criticDeepspeed", "criticDtype"),
    (r"podsPerReplica", ("spec.generator={tensorParallelSize: 4, podsPerReplica: 2}",)),
    (r"generator\.autoscale", ("spec.generator.autoscale={minReplicas: 2, maxReplicas: 6}",)),
    (r"spec\.(reward|reference)\.(tensorParallelSize|engineArguments|untried)", ("spec.{}.engine=vllm",)),
    (r"spec\.trainer\.sequenceParallelSize", ("spec.trainer.processesPerReplica=2",)),
)
"""Overrides of a manifest in which the leaves act whose place a pattern finds."""

VALUES: dict[str, list[Any]] = {
    r"reward\.clip$": [[-1.0, 1.0]],
    r"betas$": [[0.8, 0.9]],
    r"onlineDpo.overlongPenalty$": [50.0],  # with which another response is the worst
    r"labelSmoothing$": [0.1],
    r"rules.*metric$": ["entropy"],
    r"dualClip$": [1.001],
    r"gspo.clipRatio$": [0.0001],
    r"cispo.clipRatio$": [0.01],
    r"importanceCap$": [1.01],
    r"algorithm$": ["reinforce_pp"],
    r"SampleFn$": ["newest"],
    r"targetModules$": [["q_proj"]],
    r"(?i)microBatchTokens$": [64],
    r"maxPixels$": [64],
    r"gpu\.count$": [1],
    r"\.function$": ["c:d"],
    r"environment\.path$": ["c:D"],
    r"environment\.program$": [["b"]],
    r"environment\.seconds$": [900],
    r"architectures$": [["c:OwnModel"]],
    r"model\.freeze$": [["embed_tokens"]],
    r"solvedAt$": [1.0],
    r"stepSeparator$": [";;"],
    r"\.url$": ["http://h/q"],
    r"secretHeaders$": [{"Authorization": "KEY"}],
    r"optimizer\.type$": ["AdamW"],
    r"(empty|sharedMemory)$": ["2Gi"],
    r"managedBy$": ["other.example/controller"],
    r"modelCache$": ["/v/models"],
    r"engineArguments$": [{"max-num-seqs": 4}],
    r"template$": [{"metadata": {"labels": {"a": "b"}}}],
    r"template\.spec\.(containers|initContainers)$": [[{"name": "s", "image": "i"}]],
    r"template\.spec\.volumes$": [[{"name": "w", "emptyDir": {}}]],
    r"trackers.*kind$": ["mlflow"],
    r"distillation\.teachers$": [[{"name": "a", "model": "policy"}, {"name": "b", "model": "other"}]],
    r"sources\[0\]\.teacher$": ["b"],
}
"""Values to try where those of the leaf's type would not do."""

_NOT_READ = (
    "activation_checkpointing",
    "steps_per_print",
    "bf16.enabled",
    "fp16.enabled",
    "optimizer.params.lr",
)
REFUSED = {
    f"spec.trainer.{section}.{key}" for section in ("deepspeed", "criticDeepspeed") for key in _NOT_READ
} | {"spec.cispo.dualClip", "spec.distillation.referenceEma"}
REFUSED |= {f"spec.{role}.untriedEngineArguments" for role in ("generator", "reference", "reward")}
REFUSED |= {f"spec.sandbox.pods.{field}" for field in ("modelCache", "gpu.memoryGigabytes")}
"""Leaves that may have one value, or none: the message says why. The others of DeepSpeed's it reads itself. Untried
engine arguments act themselves; the flag that allows them is refused without any."""


def overrides(at: str) -> Iterator[str]:
    """Of the manifest in which a leaf acts."""
    for pattern, given in BASES:
        if re.search(pattern, at):
            yield from (
                override.replace("{}", at.split(".")[1]) if "{}." in override else override
                for override in given
            )
    if re.match(_ANY, at):
        yield from _pods(at)


def values(at: str, schema: Schema, now: Any) -> list[Any]:
    """To try in place of what the leaf says now."""
    own = [given for pattern, given in VALUES.items() if re.search(pattern, at)]
    return own[0] if own else others(schema, now)
