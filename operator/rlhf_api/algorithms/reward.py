"""Reward modelling: Bradley-Terry likelihood of preferences (Ouyang et al. 2022, arXiv:2203.02155, eq. 1)."""

from ..field_types import Frozen, NonNegativeFloat
from ..graph import REWARD_MODEL, SEQUENCES, Dataset, Graph, Train
from .base import Algorithm


class RewardModel(Frozen):
    """Training of a reward model on pairs of responses, `algorithm: reward`."""

    centering: NonNegativeFloat = 0.0
    """Weight of the square of a pair's summed scores, which keeps scores around 0; 0: off."""


ALGORITHM = Algorithm(
    name="reward",
    settings=RewardModel,
    graph=lambda _spec, _settings: Graph(
        (
            Dataset(rows="pairs"),
            Train(name="train", model=REWARD_MODEL, loss="preference", output="scores", reads=(SEQUENCES,)),
        )
    ),
    usual={"optimizer": {"learningRate": 9e-6}},  # OpenRLHF's
    other_section="reward_model",  # `reward` is the role's
)
