"""The adaptive coefficient of the entropy bonus, by hand."""

import pytest

from rlhf_trainer.maths.entropy import adaptive_entropy_coefficient


@pytest.mark.parametrize(
    ("coefficient", "observed", "after"),
    [(0.0, 0.1, 0.005), (0.01, 0.2, 0.015), (0.01, 0.21, 0.005), (0.002, 3.0, 0.0), (0.0, 3.0, 0.0)],
)
def test_the_coefficient_rises_below_the_target_and_falls_above_it(coefficient, observed, after):
    assert adaptive_entropy_coefficient(coefficient, observed, 0.2, 0.005) == pytest.approx(after)
