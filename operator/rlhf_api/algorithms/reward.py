"""Reward modelling: Bradley-Terry likelihood of preferences (Ouyang et al. 2022, arXiv:2203.02155, eq. 1)."""

from ..graph import REWARD_MODEL, SEQUENCES, Dataset, Graph, Train
from .base import Algorithm

ALGORITHM = Algorithm(
    name="reward",
    settings=None,
    graph=lambda _spec, _settings: Graph(
        (
            Dataset(rows="pairs"),
            Train(name="train", model=REWARD_MODEL, loss="preference", output="scores", reads=(SEQUENCES,)),
        )
    ),
    usual={"optimizer": {"learningRate": 9e-6}},  # OpenRLHF's
)
