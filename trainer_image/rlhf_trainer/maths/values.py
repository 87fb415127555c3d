"""Value normalisation: the critic learns returns of mean 0 and standard deviation 1, by their running moments."""

import math
from dataclasses import dataclass

from torch import Tensor

DECAY = 0.99
"""Weight of a batch of returns after each later one: about the last hundred count, so a rising reward is followed."""


@dataclass(frozen=True)
class Moments:
    """Running mean and population variance of returns, in units of reward and its square, and their weight.

    Plain floats, stored in snapshots as JSON. Before the first update they are neutral: mean 0, variance 1.
    """

    weight: float = 0.0
    mean: float = 0.0
    variance: float = 1.0

    def deviation(self, epsilon: float = 1e-5) -> float:
        """sqrt(variance), of at least `epsilon` in variance."""
        return math.sqrt(max(self.variance, epsilon))


def update_moments(moments: Moments, returns: Tensor, mask: Tensor | None = None) -> Moments:
    """The moments of the returns so far, whose weight decays, and one more batch, whose weight is its tokens.

    The two weighted sets are merged by their means and variances, which avoids a difference of large squares.
    Shapes: `returns` float [A] in units of reward, `mask` bool [A] of the tokens that count; if none does, the moments
    stay.
    Source: Chan, Golub and LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances";
    Yu et al. 2022 (MAPPO, arXiv:2103.01955), whose statistics decay too.
    """
    x = (returns if mask is None else returns[mask]).double()
    if len(x) == 0:
        return moments
    known, new = DECAY * moments.weight, float(len(x))
    total = known + new
    mean, variance = float(x.mean()), float(x.var(correction=0))
    step = mean - moments.mean
    return Moments(
        weight=total,
        mean=moments.mean + step * new / total,
        variance=(known * moments.variance + new * variance + step * step * known * new / total) / total,
    )


def normalize(returns: Tensor, moments: Moments) -> Tensor:
    """(R - mean) / deviation: what the critic learns.

    Shapes: float [A] in units of reward -> [A] without a unit, same dtype.
    Source: Yu et al. 2022 (MAPPO, arXiv:2103.01955), section 5.1.
    """
    return (returns - moments.mean) / moments.deviation()


def denormalize(values: Tensor, moments: Moments) -> Tensor:
    """V deviation + mean, the inverse of `normalize`: the critic's output in units of reward, for advantages.

    Shapes: float [A] without a unit -> [A] in units of reward, same dtype. Use the moments that the critic was last
    trained with, not newer ones.
    Source: Yu et al. 2022 (MAPPO, arXiv:2103.01955), section 5.1.
    """
    return values * moments.deviation() + moments.mean
