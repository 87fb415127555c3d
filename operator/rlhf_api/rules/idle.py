"""Warns of fields that have no effect with the present numbers, which users change from run to run: none is refused."""

from pydantic.alias_generators import to_camel

from ..algorithms import algorithm_of, settings_of
from ..algorithms.policy_gradient import PolicyGradient, is_one_update
from ..algorithms.ppo import PPO
from ..contract.run import roles_of
from ..roles import Role
from ..sections.reward import ScoreFunction
from ..spec import Spec
from .deepspeed.idle import idle_keys
from .deepspeed.keys import given_sections
from .unused import starts_critic


def list_idle_fields(spec: Spec) -> list[str]:
    """Warnings of fields that have no effect with the present numbers: settings of larger steps in a step of one
    update, a reward model whose weight is 0, timeouts of calls beyond those of chunks, keys of DeepSpeed; of a penalty
    with little effect, and of a learning rate that no step reaches."""
    idle = [f"spec.{to_camel(algorithm_of(spec).name)}.{to_camel(name)}" for name in _unreached(spec)]
    reason = "a step is one update, of a model that has not moved from what it is compared with"
    lines = [f"no effect: {', '.join(idle)}; {reason}"] if idle else []
    lines += _weak_penalty(spec)
    scored = Role.REWARD in roles_of(spec) and spec.reward.model_weight == 0
    if scored and spec.model.reward is not None and not starts_critic(spec, "reward"):
        lines.append("no effect: spec.model.reward; spec.reward.modelWeight is 0")
    return lines + _idle(spec) + _cut_short(spec) + _never_warm(spec) + _cut_episodes(spec)


def _idle(spec: Spec) -> list[str]:
    """A warning of each key of DeepSpeed's configurations that has no effect with the others."""
    return [
        f"no effect: {section.where(key)}; {reason}"
        for section, config in given_sections(spec)
        for key, reason in idle_keys(config, spec.trained_dtype(section.model))
    ]


def _cut_short(spec: Spec) -> list[str]:
    """Warnings of a reward's or a metric's timeout that is at least the timeout of a whole chunk."""
    default, most = ScoreFunction.model_fields["timeout_seconds"].default, spec.reward.timeout_seconds
    reason = f"spec.reward.timeoutSeconds ends a call with all its retries after {most} s; raise that"
    entries: dict[str, ScoreFunction] = {
        f"spec.reward.functions[{i}]": entry for i, entry in enumerate(spec.reward.functions)
    }
    entries |= spec.evaluation.placed_metrics if spec.evaluation else {}
    return [
        f"no effect: {where}.timeoutSeconds {entry.timeout_seconds}; {reason}"
        for where, entry in entries.items()
        if entry.timeout_seconds >= most and entry.timeout_seconds != default
    ]


def _never_warm(spec: Spec) -> list[str]:
    """A warning of a warm-up that is longer than the job, or of a decay that is longer than the rest of it."""
    warm, falls, steps = spec.optimizer.warmup_steps, spec.optimizer.decay_steps or 0, spec.steps
    line = f"spec.optimizer.warmupSteps {warm}: the job has {steps} steps, and none reaches the learning rate"
    if warm > steps:
        return [line]
    line = f"spec.optimizer.decaySteps {falls}: {steps - warm} steps follow the warm-up, and the rate falls in all"
    return [line] if falls > steps - warm else []


def _cut_episodes(spec: Spec) -> list[str]:
    """A warning of an environment's episodes that end before their last turn."""
    environment, turn = spec.environment, spec.sampling.max_new_tokens
    if environment is None or environment.turns * turn <= environment.max_tokens:
        return []
    turns = f"{environment.turns} turns of up to {turn} tokens (sampling.maxNewTokens)"
    return [
        f"spec.environment.maxTokens {environment.max_tokens}: {turns} do not fit; long episodes end there"
    ]


def _weak_penalty(spec: Spec) -> list[str]:
    """A warning of a KL estimator whose value is right and whose gradient, as a reward, is not."""
    settings = settings_of(spec)
    if not isinstance(settings, PolicyGradient) or settings.kl_penalty != "reward":
        return []
    if settings.kl_estimator == "k1":
        return []
    where = f"spec.{to_camel(algorithm_of(spec).name)}"
    line = f"little effect: {where}.klCoefficient; as a reward, {settings.kl_estimator} has next to no gradient near"
    return [f"{line} the reference: set {where}.klEstimator k1, or klIn loss"]


def _unreached(spec: Spec) -> list[str]:
    """Settings of the algorithm, by Python name, that bound how far a model moves within a step, in steps of one
    update."""
    settings = settings_of(spec)
    if not isinstance(settings, PolicyGradient):
        return []
    idle = list[str]()
    if is_one_update(spec, settings, settings.minibatch_size):
        idle += ["stop_ratio", "kl_cov"]
        ahead = spec.rollout.max_staleness > 0 and spec.rollout.proximal == "sampled"
        if not (ahead or spec.replay.dynamic or spec.weights.every_steps > 1):
            idle += ["clip_ratio", "clip_ratio_high", "dual_clip"]
    if isinstance(settings, PPO) and settings.value_ema is None:
        size = settings.value_minibatch_size or settings.minibatch_size
        idle += ["clip_value"] if is_one_update(spec, settings, size) else []
    given = settings.model_dump(exclude_defaults=True)
    return [name for name in sorted(idle) if name in given]
