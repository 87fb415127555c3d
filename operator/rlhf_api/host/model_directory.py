"""Checks of a model's directory, which may be a stranger's: nothing in it leads elsewhere, or has no end."""

import os
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors.problem import show
from .foreign_files import READ_ERRORS, read_json

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
PICKLES = "RLHF_PICKLED_WEIGHTS"
"""Variable with which pickled weights are loaded: `allow`. They may hold code; torch's loader refuses what it knows."""
WITHOUT_HUB = (
    "set HF_ENDPOINT to a mirror, or HF_HOME to a cache that has it, or name a folder with its files"
)
"""Remedy where the hub cannot be reached."""
HUB_SECONDS = 10.0
"""Deadline of the hub's answer to a person who waits, seconds; its client would ask for over a minute."""
MOST_FILES = 10_000
MOST_LAYERS = 10_000
"""Layers of a model; each is an object of its own before a weight is read."""


def takes_pickles() -> bool:
    """True where the environment allows pickled weights."""
    return os.environ.get(PICKLES) == "allow"


def pickled(name: str) -> str:
    """The message that refuses pickled weights, with the remedies."""
    return (
        f"has its weights only as pickles ({name}), which can hold code; save them as safetensors, or set "
        f"{PICKLES}=allow (in spec.env too on a cluster)"
    )


def directory_problem(directory: Path) -> str:
    """The first problem that keeps a model in a directory from being loaded safely, as text; '' without one."""
    try:
        problems = (*_entries(directory), *_indices(directory), *_configuration(directory))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return next(filter(None, problems), "")


def config_problem(config: Any) -> str:
    """The first part of a model's configuration that names code elsewhere or has no end, as text; '' without one."""
    if not isinstance(config, Mapping):
        return "its config.json is not an object"
    for key, value in _values(config):
        if key.endswith(("attn_implementation", "experts_implementation")) and "/" in str(value):
            return f"its config.json names code of another repository, {key} {show(value)}; remove that"
        layers = isinstance(value, int) and not isinstance(value, bool) and value > MOST_LAYERS
        if layers and key.endswith(("num_layers", "n_layer", "n_layers", "num_hidden_layers")):
            return f"its config.json has more than {MOST_LAYERS:,} layers: {key} {value}"
    return ""


def shard_names(index: Any) -> set[str]:
    """Names of the files of an index. Raises ValueError for one that is not the name of a file beside it."""
    names = set(index["weight_map"].values())
    if wrong := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
        raise ValueError(f"its index names {show(wrong[0])}, which is not a file beside it")
    return names


def _entries(directory: Path) -> Iterator[str]:
    files = list(islice(directory.iterdir(), MOST_FILES + 1))
    if len(files) > MOST_FILES:
        yield f"has more than {MOST_FILES:,} files"
    for file in sorted(files):
        try:
            mode = file.stat().st_mode
        except FileNotFoundError:  # a link to nothing
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            yield f"its {file.name} is neither a file nor a directory"
    if not takes_pickles() and not any(file.suffix == ".safetensors" for file in files):
        yield from (pickled(file.name) for file in sorted(files) if file.match("pytorch_model*.bin"))
    if any(file.name == ADAPTER_CONFIG for file in files):
        yield (
            f"has an {ADAPTER_CONFIG}, by which Transformers would load another model; merge the adapter, and remove "
            "that file"
        )


def _indices(directory: Path) -> Iterator[str]:
    for name in INDICES:
        if (directory / name).exists():
            try:
                shard_names(read_json(directory / name))
            except READ_ERRORS as error:
                yield f"its {name} cannot be read: {error}"


def _configuration(directory: Path) -> Iterator[str]:
    if (directory / CONFIG).exists():
        try:
            yield config_problem(read_json(directory / CONFIG))
        except READ_ERRORS as error:
            yield f"its {CONFIG} cannot be read: {error}"


def _values(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a configuration with the key of the nearest object."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from _values(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, key)
    else:
        yield key, node
