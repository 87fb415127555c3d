"""CEL rules of field values, of the spec and of its sections."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from ..algorithms import ALGORITHMS
from ..algorithms.policy_gradient import SampledResponses
from ..field_types import former_names
from ..roles import Role
from ..sections.data import Data
from ..sections.environment import Environment
from ..sections.model import Model
from ..sections.roles import Trainer
from ..sections.sampling import Sampling
from ..spec import Spec


@dataclass(frozen=True)
class Rule:
    """A CEL expression that valid objects satisfy, and the message otherwise."""

    rule: str
    message: str


def or_default(model: type[BaseModel], name: str, at: str) -> str:
    """CEL: the field's value in the object `self.at` (`self` for no `at`), under any of its names, or its default; both
    may be missing."""
    field = model.model_fields[name]
    value = f"'{field.default}'" if isinstance(field.default, str) else f"{field.default}"
    for key in (*(old for old, new in former_names(model).items() if new == name), field.alias or name):
        key = f"{at}.{key}".lstrip(".")
        value = f"({_has(key)} ? self.{key} : {value})"
    return value


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
_TRAINER_DTYPE = f"({_has('trainer.dtype')} ? self.trainer.dtype : {or_default(Model, 'dtype', 'model')})"


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
    name for name, algorithm in ALGORITHMS.items() if issubclass(algorithm.settings or Spec, SampledResponses)
]
"""Algorithms that sample responses; for a user's own, only the operator can tell."""
_SCORED = [
    name
    for name in _GENERATES
    if Role.REWARD
    in Spec(
        algorithm=name, steps=1, model=Model(policy="p", reference="p"), data=Data(train=("x",))
    ).graph.roles
]
"""Those of them that cannot do without scores: distillation can."""


def _generating(condition: str) -> str:
    return f"!(self.algorithm in {_GENERATES}) || ({condition})"


def _minibatch() -> Rule:
    """One rule for all algorithms, since the expression that it compares with is long."""
    sizes = "".join(
        f"self.algorithm == '{name}' ? "
        f"{or_default(algorithm.settings, 'minibatch_size', Spec.model_fields[name].alias or name)} : "
        for name, algorithm in ALGORITHMS.items()
        if algorithm.settings and "minibatch_size" in algorithm.settings.model_fields
    )
    return Rule(
        f"({sizes}0) <= {or_default(Data, 'prompts_per_step', 'data')} * "
        f"{or_default(Sampling, 'responses_per_prompt', 'sampling')}",
        "minibatchSize of the algorithm's settings must not exceed a step's responses (data.promptsPerStep x "
        "sampling.responsesPerPrompt)",
    )


def _variables() -> Rule:
    return Rule(
        "!has(self.env) || self.env.all(name, !name.startsWith('RLHF_'))",
        "spec.env: names that begin with RLHF_ are reserved",
    )


_PLAYS = "(has(self.environment) && (has(self.environment.path) || has(self.environment.program)))"
"""CEL: the job has an environment; in an earlier release its place held variables of processes."""
_LONGEST = f"({_PLAYS} ? {{}} : {{}})".format(
    or_default(Environment, "max_tokens", "environment"), or_default(Sampling, "max_new_tokens", "sampling")
)
_SPEC = (
    Rule(
        _generating("!has(self.model.create)"),
        "spec.model.create: the algorithm needs a policy that already answers; train one with algorithm sft first and "
        "give its path as spec.model.policy",
    ),
    Rule(
        f"!(self.algorithm in {_SCORED}) || ("
        f"(has(self.model.reward) && !({_has('reward.modelWeight')} && self.reward.modelWeight == 0.0)) || "
        f"({_has('reward.models')} && size(self.reward.models) > 0) || "
        f"({_has('reward.functions')} && size(self.reward.functions) > 0) || {_PLAYS})",
        "spec.reward: nothing scores the answers; set spec.model.reward (a reward model), spec.reward.functions or "
        "spec.environment",
    ),
    Rule(
        _generating(f"!({_has('reward.clip')}) || self.reward.clip[0] < self.reward.clip[1]"),
        "spec.reward.clip: the lower bound must be below the upper",
    ),
    _minibatch(),
    Rule(
        _generating(
            f"{or_default(Trainer, 'micro_batch_tokens', 'trainer')} * "
            f"{or_default(Trainer, 'sequence_parallel_size', 'trainer')} >= "
            f"{or_default(Data, 'max_prompt_length', 'data')} + {_LONGEST}"
        ),
        "spec.trainer.microBatchTokens, times sequenceParallelSize, must be at least one answer's tokens "
        "(data.maxPromptLength + sampling.maxNewTokens, or environment.maxTokens)",
    ),
    Rule(
        f"!({_has('replay.streamDataLoaderType')} && self.replay.streamDataLoaderType == 'dynamic') || "
        f"!({_has('generator.sharedWithTrainer')} && self.generator.sharedWithTrainer)",
        "spec.replay.streamDataLoaderType: dynamic needs generators; use fixed with spec.generator.sharedWithTrainer",
    ),
    *_precision("deepspeed", _TRAINER_DTYPE, "dtype"),
    *_precision("criticDeepspeed", _CRITIC_DTYPE, "criticDtype"),
    _variables(),
)
_SAMPLING = (
    Rule(
        f"!has(self.minNewTokens) || self.minNewTokens <= {or_default(Sampling, 'max_new_tokens', '')}",
        "spec.sampling.minNewTokens must not exceed maxNewTokens",
    ),
)
_MODEL_SERVER = (
    Rule(
        "!has(self.tensorParallelSize) || self.tensorParallelSize == 1 || (has(self.engine) && self.engine == 'vllm')",
        "tensorParallelSize applies only to engine vllm; use 1, or set that",
    ),
)
_AUTOSCALE = (
    Rule(
        "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
        "spec.generator.autoscale.minReplicas must not exceed maxReplicas",
    ),
)
_REPLAY = (
    Rule(
        "!has(self.samplesPerStep) || !has(self.replaySampleFn) || !self.replaySampleFn.contains(':')",
        "spec.replay.samplesPerStep is for the built-in samplers; a function itself says how many it returns",
    ),
)
_SCHEDULING = (
    Rule(
        "!has(self.queue) || (has(self.gang) && self.gang == 'volcano')",
        "spec.scheduling.queue is Volcano's; set gang to volcano, or put a job into a Kueue queue by the label "
        "kueue.x-k8s.io/queue-name",
    ),
)

SECTIONS: dict[str, tuple[Rule, ...]] = {
    "Spec": _SPEC,
    "RuntimeSpec": (_variables(),),
    "Model": _POLICY,
    "Sampling": _SAMPLING,
    "Autoscale": _AUTOSCALE,
    "Reference": _MODEL_SERVER,
    "Reward": _MODEL_SERVER,
    "Replay": _REPLAY,
    "Scheduling": _SCHEDULING,
}
"""Rules by model name."""
