"""The rules of `checks` that CEL can express, for API servers from 1.25 on: they reject at admission what the operator
would fail.

Each rule is part of a model's schema, with that model's object as `self`. Every rule is also in `checks`, so that
nothing is lost on a server without CEL. The schema sets no defaults, so optional fields are tested by `has()`. A server
refuses rules whose worst-case cost is too high, and assumes lists as long as a request allows: so everything in the
schema is bounded (`bounds`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from .algorithms import ALGORITHMS
from .algorithms.base import PolicyGradient
from .checks import CHANGEABLE, RELAY
from .model import Model
from .pod_checks import CONFIG_DIRECTORY, MOUNTS, NOT_OVER, SOURCES, VOLUMES
from .pods import Gpu
from .roles import Generator, Trainer
from .spec import Data, Sampling, Spec
from .status import CORRECTABLE


@dataclass(frozen=True)
class Rule:
    """A CEL expression that valid objects satisfy, and the message otherwise."""

    rule: str
    message: str


def _or_default(model: type[BaseModel], name: str, at: str) -> str:
    """CEL: the field's value in the object `self.at` (`self` for no `at`), or its default; both may be missing."""
    field = model.model_fields[name]
    key = f"{at}.{field.alias or name}".lstrip(".")
    default = f"'{field.default}'" if isinstance(field.default, str) else f"{field.default}"
    return f"({_has(key)} ? self.{key} : {default})"


def _has(key: str) -> str:
    """CEL: the field and every object on its path are present."""
    parts = key.split(".")
    return " && ".join(f"has(self.{'.'.join(parts[: i + 1])})" for i in range(len(parts)))


_POLICY = (
    Rule(
        "has(self.policy) != has(self.create)",
        "spec.model needs exactly one of policy (a path or hub name) and create",
    ),
)
_TRAINER_DTYPE = f"({_has('trainer.dtype')} ? self.trainer.dtype : {_or_default(Model, 'dtype', 'model')})"


_CRITIC_DTYPE = f"({_has('trainer.criticDtype')} ? self.trainer.criticDtype : {_TRAINER_DTYPE})"


def _precision(section: str, dtypes: str, field: str) -> Iterator[Rule]:
    """`dtypes`: CEL for the dtype that the section's model computes in."""
    for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        enabled = f"trainer.{section}.{key}.enabled"
        yield Rule(
            f"!({_has(enabled)} && self.{enabled}) || {dtypes} == '{dtype}'",
            f"spec.{enabled}: set spec.trainer.{field} to {dtype} or drop this",
        )


_GENERATES = [
    name for name, found in ALGORITHMS.items() if issubclass(found.settings or Spec, PolicyGradient)
]
"""Algorithms that sample responses; for a user's own, only the operator can tell."""


def _generating(condition: str) -> str:
    return f"!(self.algorithm in {_GENERATES}) || ({condition})"


def _minibatch() -> Rule:
    """One rule for all algorithms, since the expression that it compares with is long."""
    sizes = "".join(
        f"self.algorithm == '{name}' ? "
        f"{_or_default(found.settings, 'minibatch_size', Spec.model_fields[name].alias or name)} : "
        for name, found in ALGORITHMS.items()
        if found.settings and "minibatch_size" in found.settings.model_fields
    )
    return Rule(
        f"({sizes}0) <= {_or_default(Data, 'prompts_per_step', 'data')} * "
        f"{_or_default(Sampling, 'answers_per_prompt', 'sampling')}",
        "minibatchSize of the algorithm's settings must not exceed a step's answers (data.promptsPerStep x "
        "sampling.answersPerPrompt)",
    )


_ENVIRONMENT = (
    Rule(
        "!has(self.environment) || self.environment.all(name, !name.startsWith('RLHF_'))",
        "spec.environment: names that begin with RLHF_ are the operator's",
    ),
)
_SPEC = (
    Rule(
        _generating("!has(self.model.create)"),
        "spec.model.create: the algorithm needs a policy that already answers; train one with algorithm sft first and "
        "give its path as spec.model.policy",
    ),
    Rule(
        _generating(
            f"(has(self.model.reward) && !({_has('reward.modelWeight')} && self.reward.modelWeight == 0.0)) || "
            f"({_has('reward.functions')} && size(self.reward.functions) > 0)"
        ),
        "spec.reward: nothing scores the answers; set spec.model.reward (a reward model) or spec.reward.functions",
    ),
    Rule(
        _generating(f"!({_has('reward.clip')}) || self.reward.clip[0] < self.reward.clip[1]"),
        "spec.reward.clip: the lower bound must be below the upper",
    ),
    _minibatch(),
    Rule(
        _generating(
            f"{_or_default(Trainer, 'micro_batch_tokens', 'trainer')} >= "
            f"{_or_default(Data, 'max_prompt_length', 'data')} + {_or_default(Sampling, 'max_new_tokens', 'sampling')}"
        ),
        "spec.trainer.microBatchTokens must be at least one answer's tokens (data.maxPromptLength + "
        "sampling.maxNewTokens)",
    ),
    Rule(
        f"!({_has('replay.streamDataLoaderType')} && self.replay.streamDataLoaderType == 'dynamic') || "
        f"!({_has('generator.sharedWithTrainer')} && self.generator.sharedWithTrainer)",
        "spec.replay.streamDataLoaderType: dynamic needs generators; use fixed with spec.generator.sharedWithTrainer",
    ),
    *_precision("deepspeed", _TRAINER_DTYPE, "dtype"),
    *_precision("criticDeepspeed", _CRITIC_DTYPE, "criticDtype"),
    *_ENVIRONMENT,
)
_SAMPLING = (
    Rule(
        f"!has(self.minNewTokens) || self.minNewTokens <= {_or_default(Sampling, 'max_new_tokens', '')}",
        "spec.sampling.minNewTokens must not exceed maxNewTokens",
    ),
)
_MODEL_SERVER = (
    Rule(
        "!has(self.tensorParallelSize) || self.tensorParallelSize == 1 || (has(self.engine) && self.engine == 'vllm')",
        "tensorParallelSize is of engine vllm; use 1, or set that",
    ),
)
_AUTOSCALE = (
    Rule(
        "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
        "spec.generator.autoscale.minReplicas must not exceed maxReplicas",
    ),
)
_REPLAY = (
    *(
        Rule(
            f"!has(self.{to_camel(name)}) || !has(self.{to_camel(relay)})",
            f"spec.replay.{to_camel(relay)} means the same as {to_camel(name)}; remove one of them",
        )
        for name, relay in RELAY.items()
    ),
    Rule(
        "!has(self.samplesPerStep) || !((has(self.replaySampleFn) && self.replaySampleFn.contains(':')) || "
        "(has(self.relaySampleFn) && self.relaySampleFn.contains(':')))",
        "spec.replay.samplesPerStep is for the built-in samplers; a function itself says how many it returns",
    ),
)
_POD_SETTINGS = (
    Rule(
        "!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(w, w.mountPath == v.mountPath))",
        "volumes: two of them have the same mountPath",
    ),
    Rule(
        "!has(self.gpu) || !has(self.resources) || ["
        + ", ".join(
            f"has(self.resources.{kind}) ? self.resources.{kind} : {{}}" for kind in ("requests", "limits")
        )
        + f"].all(given, !({_or_default(Gpu, 'resource', 'gpu')} in given))",
        "resources names what gpu.count asks for; remove one of them",
    ),
)
_VOLUME = (
    Rule(
        f"[{', '.join(f'has(self.{source})' for source in SOURCES)}].exists_one(given, given)",
        f"a volume needs exactly one source of {', '.join(SOURCES)}",
    ),
    Rule(f"!(self.name in {list(VOLUMES)})", "name: the operator has a volume of that name"),
    Rule(
        f"!(self.mountPath in {[*MOUNTS, *NOT_OVER]}) && !self.mountPath.startsWith('{CONFIG_DIRECTORY}/')",
        "mountPath: every pod has something of its own there",
    ),
)
_TOLERATION = (
    Rule(
        "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
        "key is required unless operator is Exists, which then tolerates everything",
    ),
    Rule(
        "!has(self.value) || !has(self.operator) || self.operator != 'Exists'",
        "value: operator Exists takes none",
    ),
    Rule(
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds is for effect NoExecute alone",
    ),
)
_SCHEDULING = (
    Rule(
        "!has(self.queue) || (has(self.gang) && self.gang == 'volcano')",
        "spec.scheduling.queue is Volcano's; set gang to volcano, or put a job into a Kueue queue by the label "
        "kueue.x-k8s.io/queue-name",
    ),
)


def _same(key: str) -> str:
    """CEL: an optional field is unchanged. Not written as `self.?key`, whose worst case a server takes to be
    unbounded.
    """
    return f"(has(self.{key}) ? has(oldSelf.{key}) && self.{key} == oldSelf.{key} : !has(oldSelf.{key}))"


def _unchanged() -> Iterator[str]:
    """CEL: each section is unchanged, except for those that may change while a job runs."""
    for name, field in Spec.model_fields.items():
        key = f"spec.{field.alias or name}"
        if name == "generator":
            # Always present, because its replicas have a default.
            inner = Generator.model_fields.items()
            yield from (_same(f"{key}.{f.alias or n}") for n, f in inner if n != "replicas")
        elif name not in CHANGEABLE:
            yield f"self.{key} == oldSelf.{key}" if field.is_required() else _same(key)


# The phase is not enough: a job that ran and failed is immutable, but one that was refused may be corrected.
_MAY_CHANGE = (
    "has(oldSelf.spec.suspend) && oldSelf.spec.suspend || has(oldSelf.status) && has(oldSelf.status.conditions) && "
    f"oldSelf.status.conditions.exists(c, c.type == 'Failed' && c.reason in {[*CORRECTABLE]})"
)
_JOB = (
    # One rule for all sections: one rule each would take a tenth of the whole definition.
    Rule(
        f"{_MAY_CHANGE} || {' && '.join(_unchanged())}",
        "while a job runs, its spec can change in "
        + ", ".join(["generator.replicas", *map(to_camel, CHANGEABLE)])
        + " alone; suspend it first (spec.suspend: true)",
    ),
)

RULES: dict[str, tuple[Rule, ...]] = {
    "RLHFJob": _JOB,
    "Spec": _SPEC,
    "RuntimeSpec": _ENVIRONMENT,
    "Model": _POLICY,
    "Sampling": _SAMPLING,
    "Autoscale": _AUTOSCALE,
    "Reference": _MODEL_SERVER,
    "Reward": _MODEL_SERVER,
    "Replay": _REPLAY,
    "PodSettings": _POD_SETTINGS,
    "Volume": _VOLUME,
    "Toleration": _TOLERATION,
    "Scheduling": _SCHEDULING,
}
"""Rules by model name."""
