"""Parameter counts of models in local directories, from file headers and configurations, without loading them."""

import json
import math
from pathlib import Path
from typing import Any

from .parameters import count_parameters
from .sizes import LOADED
from .spec import Spec

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LONGEST_HEADER = 100 << 20
"""The format allows no longer one."""


def model_sizes(spec: Spec) -> dict[str, int]:
    """By the field of `spec.model` that names the directory; without those that cannot be read."""
    found = {}
    for field in LOADED:
        name: str | None = getattr(spec.model, field)
        parameters = _parameters(Path(name)) if name is not None else None
        if parameters is not None:
            found[field] = parameters
    return found


def _parameters(directory: Path) -> int | None:
    """Counted in the headers of the weights' files, or else worked out from the configuration."""
    for count in (_in_files, _by_configuration):
        try:
            parameters = count(directory)
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            continue  # whoever loads it says what is wrong
        if parameters:
            return parameters
    return None


def _in_files(directory: Path) -> int:
    index = directory / _INDEX
    names = set(_read(index)["weight_map"].values()) if index.is_file() else {_WEIGHTS}
    return sum(_elements(directory / name) for name in names)


def _elements(file: Path) -> int:
    """Of all tensors in a safetensors file, by its header."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"{file} is no safetensors file")
        header = json.loads(opened.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _by_configuration(directory: Path) -> int | None:
    return count_parameters(_read(directory / "config.json"))


def _read(file: Path) -> Any:
    return json.loads(file.read_bytes())
