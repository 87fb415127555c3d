"""Process reward modelling: likelihood of the labels of steps (Uesato et al. 2022, arXiv:2211.14275; Lightman et al.
2023, arXiv:2305.20050)."""

from ..field_types import Frozen
from ..graph import PROCESS_REWARD_MODEL, SEQUENCES, STEP_LABEL, Dataset, Graph, Train
from ..sections.common import CommonSpec
from .base import Algorithm


def _graph(_spec: CommonSpec, _settings: Frozen) -> Graph:
    columns = (SEQUENCES, STEP_LABEL)
    train = Train(
        name="train",
        model=PROCESS_REWARD_MODEL,
        loss="step_likelihood",
        output="token_scores",
        reads=columns,
    )
    return Graph((Dataset(rows="stepwise", writes=columns), train))


ALGORITHM = Algorithm(
    name="process_reward",
    settings=None,
    graph=_graph,
    usual={"optimizer": {"learningRate": 1e-5}},  # TRL's
)
