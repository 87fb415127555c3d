"""Supervised fine-tuning: maximum likelihood of given responses."""

from ..graph import SEQUENCES, SUPERVISED, Dataset, Graph, Train
from .base import Algorithm

ALGORITHM = Algorithm(
    name="sft",
    settings=None,
    graph=lambda _spec, _settings: Graph(
        (
            Dataset(rows="responses"),
            Train(
                name="train",
                model=SUPERVISED,
                loss="likelihood",
                output="logprobs_untempered",
                reads=(SEQUENCES,),
            ),
        )
    ),
    usual={"optimizer": {"learningRate": 5e-6}},  # OpenRLHF's
)
