"""Health of a step: a loss or gradient that is not finite has made weights of which nothing can be saved."""

import math
from collections.abc import Mapping

from rlhf_api.problems import InvalidJob, Problem

FIGURES = ("loss", "grad_norm")
"""Ends of the names of figures that are finite in every update; in float16 the norm of a skipped update is 0."""


def check_finite(figures: Mapping[str, float], step: int) -> None:
    """Raises InvalidJob where a loss or gradient norm of `step` is NaN or infinite: the job fails, and is not started
    again, since a step that is resumed exactly ends the same."""
    bad = {
        name: value for name, value in figures.items() if name.endswith(FIGURES) and not math.isfinite(value)
    }
    if bad:
        seen = ", ".join(f"{name} {value}" for name, value in sorted(bad.items()))
        message = (
            f"training diverged in step {step}: {seen}. Its weights were neither served nor saved; go on from the "
            "newest checkpoint with a lower rate, a smaller spec.optimizer.gradientClip, or other data"
        )
        raise InvalidJob([Problem("spec.optimizer.learningRate", message)])
