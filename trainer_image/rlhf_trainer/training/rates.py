"""The learning rate that a manifest asks for."""

from rlhf_api.spec import Spec

from ..maths.schedule import learning_rate


def rate_at(spec: Spec, step: int, base: float) -> float:
    """The learning rate of training step `step` where the peak is `base`."""
    return learning_rate(
        step,
        base=base,
        warmup_steps=spec.optimizer.warmup_steps,
        total_steps=spec.steps,
        schedule=spec.optimizer.schedule,
    )
