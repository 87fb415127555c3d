"""The two halves of a selftest's run, as overrides of the job's own manifest; pure.

The first trains with learning rate 0, so that every kill and restart must leave all parameters unchanged; the second
resumes from its last checkpoint, with a raised learning rate, on a reward that any language model can raise.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.alias_generators import to_camel, to_snake

from rlhf_api.algorithms import CUSTOM, algorithm_of, settings_of
from rlhf_api.algorithms.policy_gradient import SampledResponses
from rlhf_api.contract.run import roles_of
from rlhf_api.graph import CRITIC
from rlhf_api.manifest.deepspeed_auto import AUTO, KEYS
from rlhf_api.roles import Role
from rlhf_api.sections.data import Data
from rlhf_api.sections.deepspeed import SECTIONS
from rlhf_api.sections.optimizer import Optimizer
from rlhf_api.spec import Spec

CANARY = "rlhf_trainer.scoring.canary:even_share"
RESPONSES, TOKENS = 64, 32
"""Maximum number of responses per step, and of tokens per response."""
BASELINE = 2
"""Step of the first snapshot to keep: its parameters are the baseline, so nothing is killed before."""
RAISED = 10.0
"""Factor of the learning rate in the second half."""
UNBOUNDED = 1_000_000
"""Steps of the first half, which is stopped once every role was killed and restarted."""

Overrides = dict[str, Any]
"""Values of a manifest by path, such as `optimizer.learningRate`."""


def first_half(spec: Spec) -> Overrides:
    """Small steps of the job with learning rate 0 and a checkpoint after each."""
    still = _optimizer(0.0, 0.0 if CRITIC in spec.graph.trained else None)
    return {**_small(spec), **_survivable(spec), **_to_itself(spec), **still, "steps": UNBOUNDED}


def second_half(spec: Spec, steps: int) -> Overrides:
    """The job on the canary's reward, until the run has made `steps` steps; the last one has a checkpoint."""
    rate = (spec.optimizer.learning_rate or Optimizer().learning_rate) * RAISED
    critic = spec.optimizer.critic_learning_rate
    raised = _optimizer(rate, critic if critic is None else critic * RAISED)
    learning = raised | _canary(spec) if has_canary(spec) else {}
    return {**first_half(spec), **learning, "steps": steps, "checkpoint": {"everySteps": steps}}


def on_cluster(spec: Spec, name: str, seconds: float) -> Overrides:
    """The job under another name, with a deadline of `seconds`, so that it ends even if its creator is gone."""
    scale = spec.generator.autoscale
    fixed: Overrides = (
        {"generator.autoscale": None, "generator.replicas": scale.min_replicas} if scale else {}
    )
    bounded = {"activeDeadlineSeconds": round(seconds), "ttlSecondsAfterFinished": round(seconds)}
    return {"metadata.name": name, "suspend": False, **bounded, **fixed}


def has_canary(spec: Spec) -> bool:
    """True if responses are sampled and scored, so that a reward can rise."""
    return spec.graph.generates and Role.REWARD in roles_of(spec)


def as_arguments(overrides: Mapping[str, Any]) -> Iterable[str]:
    """The overrides as `path=value` of the command line."""
    return [f"{path}={json.dumps(value)}" for path, value in overrides.items()]


def _small(spec: Spec) -> Overrides:
    """Few and short responses, one pass over them, none filtered."""
    sampling, prompts = spec.sampling, spec.data.prompts_per_step
    generates = spec.graph.generates
    if algorithm_of(spec) is not CUSTOM:  # whose settings may depend on a step's size
        prompts = min(prompts, max(1, RESPONSES // (sampling.responses_per_prompt if generates else 1)))
    auto = _auto(spec) if algorithm_of(spec) is not CUSTOM else {}
    if not generates:
        return {"data.promptsPerStep": prompts, **auto}
    off = {"sampling.topP": 1.0, "sampling.minP": 0.0, "sampling.topK": -1, **_unstructured(spec)}
    uncut = off if sampling.cut else {}
    return {
        "data.promptsPerStep": prompts,
        "sampling.maxNewTokens": min(sampling.max_new_tokens, TOKENS),
        "sampling.minNewTokens": 0,
        **uncut,
        **({} if sampling.thinking is None else {"sampling.thinking": None}),
        "replay": {},
        "rollout": {},
        "weights.everySteps": 1,
        **auto,
        **_settings(spec, prompts * sampling.responses_per_prompt),
    }


def _auto(spec: Spec) -> Overrides:
    """DeepSpeed's own names of a step's size, which the manifest may have too, as what follows from ours."""
    given = (each.name for each in SECTIONS if to_snake(each.name) in spec.trainer.model_fields_set)
    return {f"trainer.{name}.{key}": AUTO for name in given for key in KEYS}


def _settings(spec: Spec, responses: int) -> Overrides:
    """Settings of the algorithm that suit this number of responses, most of which the length limit will cut off."""
    section, settings = to_camel(algorithm_of(spec).section), settings_of(spec)
    most = {"minibatch_size": responses, "value_minibatch_size": responses}
    off = {"dynamic_sampling": 0, "overlong_filter": False, "overlong_buffer": 0, "critic_warmup_steps": 0}
    off |= {"balance_tokens": False}  # a step may be one update
    off |= {
        "overlong_penalty": SampledResponses.model_fields["overlong_penalty"].default
    }  # of a buffer alone
    overrides = {
        name: min(own, size) for name, size in most.items() if (own := getattr(settings, name, None))
    }
    overrides |= {name: value for name, value in off.items() if getattr(settings, name, value) != value}
    return {f"{section}.{to_camel(name)}": value for name, value in overrides.items()}


def _survivable(spec: Spec) -> Overrides:
    """Overrides with which every role may be restarted once, however it ended."""
    overrides: Overrides = {}
    for role in roles_of(spec):
        overrides[f"{role.value}.backoffLimit"] = max(1, spec.section(role).backoff_limit)
        overrides[f"{role.value}.failureRules"] = []
    return overrides


def _to_itself(spec: Spec) -> Overrides:
    """Overrides without trackers, exports and health rules: the selftest judges itself."""
    return {
        "checkpoint": {"everySteps": 1, "keepEvery": BASELINE},
        "evaluation": None,
        "trackers": [],
        "health": {"logprobDifference": 0, "logprobOutliers": 1} if spec.graph.generates else {},
    }


def _optimizer(rate: float, critic: float | None) -> Overrides:
    constant: Overrides = {"optimizer.schedule": "constant", "optimizer.warmupSteps": 0}
    constant |= {"optimizer.floor": 0.0, "optimizer.decaySteps": None}
    return {**constant, "optimizer.learningRate": rate, "optimizer.criticLearningRate": critic}


def _canary(spec: Spec) -> Overrides:
    """The canary as the only reward, untransformed, of responses that may be any."""
    return {
        **_unstructured(spec),
        "reward.functions": [{"function": CANARY}],
        **_without_model(spec),
        "reward.bias": 0.0,
        "reward.scale": 1.0,
        "reward.clip": None,
    }


def _unstructured(spec: Spec) -> Overrides:
    return {} if spec.sampling.structured_outputs is None else {"sampling.structuredOutputs": None}


def _without_model(spec: Spec) -> Overrides:
    """The reward role without its models; the manifest names `model.reward` on: the run is known by its models."""
    if spec.model.reward is None and not spec.reward.models:
        return {}
    own: Overrides = {"dtype": None, "engine": "transformers", "tensorParallelSize": 1, "engineArguments": {}}
    own |= {"stepScores": None, "models": []}
    own |= {} if spec.model.reward is None else {"modelWeight": 0.0}
    separator = Data.model_fields["step_separator"].default
    return {"data.stepSeparator": separator, **{f"reward.{key}": value for key, value in own.items()}}
