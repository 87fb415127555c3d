"""Autoscaler: number of generators from the measured idle shares of trainer and generators; pure.

Like a HorizontalPodAutoscaler, the operator writes `spec.generator.replicas` through the scale subresource; everything
else follows from the spec.
"""

import math
from collections.abc import Sequence

from rlhf_api.contract.report import TrainerStatus
from rlhf_api.contract.status import JobStatus, ScalingStatus
from rlhf_api.roles import Role
from rlhf_api.sections.roles import Autoscale
from rlhf_api.spec import Spec

from ...supervision.process_state import ProcessState
from .describe import Event

UP_STEPS, DOWN_STEPS = 3, 8
"""Consecutive steps that must ask for more generators, or for fewer."""
_SLACK = 1e-6


def required_replicas(spec: Spec, scale: Autoscale, trainer: TrainerStatus) -> int | None:
    """Fewest generators with which the last step's trainer would have waited no longer than `trainerIdle` of a step,
    within the bounds; None if the step was not measured.

    With t = trainerIdle, T the share of the step that the trainer worked, and W = n (1 - generators' idle share) the
    work of generation in steps of one generator: a trainer that waits for generation idles W/n of T + W/n, so n is at
    least W/T (1 - t)/t; one that trains meanwhile idles where W/n is above T, so n is at least W/T (1 - t).
    """
    waited = trainer.trainer_idle
    if waited is None or not 0 <= waited < 1:
        return None
    beside = spec.replay.dynamic or spec.rollout.max_staleness > 0
    work = spec.generator.replicas * (1 - (trainer.generator_idle or 0.0))
    generators = work / (1 - waited) * (1 - scale.trainer_idle) / (1 if beside else scale.trainer_idle)
    return clamp_replicas(scale, math.ceil(generators - _SLACK))


def clamp_replicas(scale: Autoscale, replicas: int) -> int:
    """The number, clamped to the bounds."""
    return min(max(replicas, scale.min_replicas), scale.max_replicas)


def record_step(
    spec: Spec, trainer: TrainerStatus, before: ScalingStatus | None, processes: Sequence[ProcessState]
) -> ScalingStatus | None:
    """The measured steps, with the trainer's last one added. Reset when the number of generators has changed or one is
    missing, since a step under way then is a mixture. None without `generator.autoscale`."""
    scale, replicas = spec.generator.autoscale, spec.generator.replicas
    if scale is None:
        return None
    ready = all(each.ready for each in processes if each.role is Role.GENERATOR)
    if before is None or before.replicas != replicas or not ready or trainer.step < before.step:
        return ScalingStatus(replicas=replicas, step=trainer.step + 1)
    required = required_replicas(spec, scale, trainer)
    if trainer.step <= before.step or required is None:
        return before
    return ScalingStatus(
        replicas=replicas, step=trainer.step, wanted=(*before.wanted, required)[-DOWN_STEPS:]
    )


def choose_replicas(spec: Spec, scaling: ScalingStatus) -> int | None:
    """The new number of generators, or None: more when `UP_STEPS` consecutive steps ask for more, fewer after
    `DOWN_STEPS`; of their numbers the one that changes least."""
    up, down = scaling.wanted[-UP_STEPS:], scaling.wanted[-DOWN_STEPS:]
    replicas = spec.generator.replicas
    assert spec.generator.autoscale is not None
    if (within := clamp_replicas(spec.generator.autoscale, replicas)) != replicas:
        return within
    if len(up) == UP_STEPS and min(up) > replicas:
        return min(up)
    if len(down) == DOWN_STEPS and max(down) < replicas:
        return max(down)
    return None


def scaled_event(status: JobStatus, before: int, now: int) -> Event:
    """Event for a change of the number."""
    idle = f": the trainer waited {status.trainer_idle:.0%} of the last step" if status.trainer_idle else ""
    return Event("Normal", "Autoscaled", f"generators {before} -> {now}{idle} (spec.generator.autoscale)")
