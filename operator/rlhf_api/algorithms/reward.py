"""Reward modelling: Bradley-Terry likelihood of preferences (Ouyang et al. 2022, arXiv:2203.02155, eq. 1), with margins
(Touvron et al. 2023, arXiv:2307.09288, eq. 2)."""

from ..field_types import Frozen, NonNegativeFloat
from ..graph import MARGIN, REWARD_MODEL, SEQUENCES, Dataset, Graph, Train
from ..sections.common import CommonSpec
from .base import Algorithm


class RewardModel(Frozen):
    """Training of a reward model on pairs of responses, `algorithm: reward`."""

    centering: NonNegativeFloat = 0.0
    """Weight of the square of a pair's summed scores, which keeps scores around 0; 0: off."""
    margins: bool = False
    """Each row has a `margin`, by which the score of its better response is to be higher."""


def _graph(_spec: CommonSpec, settings: RewardModel) -> Graph:
    margin = (MARGIN,) if settings.margins else ()
    return Graph(
        (
            Dataset(rows="graded" if settings.margins else "pairs", writes=(SEQUENCES, *margin)),
            Train(
                name="train",
                model=REWARD_MODEL,
                loss="preference",
                output="scores",
                reads=(SEQUENCES, *margin),
            ),
        )
    )


ALGORITHM = Algorithm(
    name="reward",
    settings=RewardModel,
    graph=_graph,
    usual={"optimizer": {"learningRate": 9e-6}},  # OpenRLHF's
    other_section="reward_model",  # `reward` is the role's
)
