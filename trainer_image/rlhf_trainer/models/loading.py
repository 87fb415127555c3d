"""Loading a role's model with the manifest's field in the message when that fails."""

from collections.abc import Callable
from typing import TypeVar

import torch

from rlhf_api.problems import InvalidJob, Problem

Loaded = TypeVar("Loaded")


def loading(where: str, load: Callable[[], Loaded]) -> Loaded:
    """`load()`; a ValueError becomes an InvalidJob that names the field `where`."""
    try:
        return load()
    except ValueError as error:
        raise InvalidJob([Problem(where, str(error))]) from error


def torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
