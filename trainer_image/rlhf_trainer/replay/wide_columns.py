"""Token columns with several numbers a token, as one column of an episode's table for each of them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlhf_api.graph import REFERENCE_TOP


def split_column(name: str, column: Tensor) -> dict[str, Tensor]:
    """[A, M] -> M columns [A] by name; a column [A] stays."""
    if column.ndim == 1:
        return {name: column}
    return {f"{name}_{i}": part.contiguous() for i, part in enumerate(column.unbind(1))}


def join_columns(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inverse of `split_column`, for all of a table's columns."""
    names = [name for i in range(len(columns)) if (name := f"{REFERENCE_TOP}_{i}") in columns]
    if not names:
        return dict(columns)
    whole = torch.stack([columns[name] for name in names], dim=1)
    return {**{n: column for n, column in columns.items() if n not in names}, REFERENCE_TOP: whole}
