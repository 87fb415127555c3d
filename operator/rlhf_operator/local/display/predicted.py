"""Formats the seconds of a step as they were predicted and measured; pure."""

from collections.abc import Mapping

from rlhf_api.contract.prediction import Prediction

from ...console.text import span


def before_line(prediction: Prediction, steps: int) -> str | None:
    """Line of the predicted seconds, for the start of a run; None without them."""
    if prediction.step is None:
        return None
    phases = ", ".join(f"{name} {seconds:.3g}" for name, seconds in prediction.phases.items())
    return (
        f"predicted: {prediction.step:.3g} s a step ({phases}), {steps} steps in {span(prediction.step * steps)}, "
        f"at the rates of {prediction.by}"
    )


def after_line(prediction: Prediction, seconds: Mapping[str, float]) -> str | None:
    """Line of the measured seconds beside the predicted ones, for the end of a run; `seconds`: medians by
    phase, and of the `step`."""
    if prediction.step is None or (step := seconds.get("step")) is None:
        return None
    phases = ", ".join(
        f"{name} {seconds[name]:.3g} ({predicted:.3g})"
        for name, predicted in prediction.phases.items()
        if name in seconds
    )
    off = f"{round(prediction.step / step - 1, 2) + 0:+.0%}"
    return (
        f"seconds of a step, and predicted: {step:.3g} ({prediction.step:.3g}, {off})"
        + f"; {phases}" * bool(phases)
    )
