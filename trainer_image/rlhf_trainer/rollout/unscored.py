"""Responses without a score: NaN in the columns of Score nodes."""

import torch
from torch import Tensor

from rlhf_api.graph import ENVIRONMENT_REWARD, Graph, Score

from ..tensors.columns import Columns


def score_columns(graph: Graph) -> tuple[str, ...]:
    """Names of the columns that the reward role writes, or an environment."""
    episodes = (ENVIRONMENT_REWARD,) if ENVIRONMENT_REWARD in graph.source.writes else ()
    return (*episodes, *(name for node in graph.prepare if isinstance(node, Score) for name in node.writes))


def unscored(columns: Columns, names: tuple[str, ...]) -> Tensor:
    """True for responses with NaN in any of the present columns: bool [N]."""
    owner = torch.arange(len(columns))
    lacking = torch.zeros(len(columns), dtype=torch.bool)
    for name in names:
        if name in columns.rows:
            lacking |= columns[name].isnan()
        elif name in columns.tokens:
            lacking |= torch.isin(
                owner, torch.repeat_interleave(owner, columns.lengths)[columns[name].isnan()]
            )
    return lacking
