"""Sizes of models on this machine, from file headers and configurations, without loading weights."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ..contract.teachers import named_models
from ..host.foreign_files import LARGEST_JSON, READ_ERRORS, open_regular, parse_json, read_json
from ..host.hub_cache import downloaded
from ..host.model_directory import shard_names
from ..sections.model import VISION, Model, is_of_part
from ..spec import Spec
from .mixtures import choices, idle_share
from .parameters import count_parameters, shape_of
from .shapes import FUSED, Shape
from .sizes import LOADED, Size

_HEAD = "lm_head.weight"
"""Of the output layer, which no file has where it is tied to the embeddings."""
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MOST_DIMENSIONS = 16
_EXPERT = re.compile(r"\.experts\.\d+\.")


def model_sizes(spec: Spec, environ: Mapping[str, str] = os.environ) -> dict[str, Size]:
    """Sizes by the field that names a directory, or a model of the hub that was downloaded before; unreadable ones are
    left out. `environ`: with the variables of the hub's client."""
    sizes: dict[str, Size] = {}
    for field, where, name in named_models(spec, LOADED):
        folder = _folder(name, {**environ, **spec.env})
        parameters = None if folder is None else _parameters(folder)
        if folder is not None and parameters is not None:
            frozen = _frozen(folder, spec.model) if field == "policy" else None
            active = _active(folder, parameters)
            chosen = choices(read_json(folder / "config.json")) if active else 0
            size = Size(parameters, _shape(folder), active=active, choices=chosen, frozen=frozen)
            sizes[where.removeprefix("spec.model.")] = size
    return sizes


def _folder(name: str, environ: Mapping[str, str]) -> Path | None:
    return Path(name) if Path(name).is_dir() else downloaded(name, environ)


def matrices(directory: Path) -> list[str]:
    """Names of layers with a weight matrix, from a model's files; empty if unreadable. A mixture's files have a matrix
    for each expert, of which Transformers makes two."""
    try:
        shapes = {name: shape for file in _files(directory) for name, shape in _shapes(file).items()}
    except READ_ERRORS:
        return []
    names = [n.removesuffix(".weight") for n, s in shapes.items() if n.endswith(".weight") and len(s) == 2]
    fused = {_EXPERT.split(name)[0] for name in names if _EXPERT.search(name)}
    alone = [name for name in names if not _EXPERT.search(name)]
    return alone + [f"{before}.{part}" for before in sorted(fused) for part in FUSED]


def tensor_names(directory: Path) -> list[str]:
    """Names of the tensors in a model's files; empty if unreadable."""
    try:
        return [name for file in _files(directory) for name in _shapes(file)]
    except READ_ERRORS:
        return []


def tensor_entries(file: BinaryIO) -> dict[str, Any]:
    """`dtype`, `shape` and `data_offsets` of each tensor in an open safetensors file, which is then positioned at its
    data. The format: 8 bytes of length, a JSON header, the tensors. Raises ValueError for another format."""
    length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_JSON:
        raise ValueError(f"no safetensors file: its header would have {length} bytes")
    header = parse_json(file.read(length))
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def token_ids(directory: Path) -> tuple[dict[str, int], list[str]] | None:
    """Ids of the tokens, and the merges, of a tokenizer.json; None where there is none that can be read so."""
    try:
        made = read_json(directory / "tokenizer.json")
        ids = made["model"]["vocab"]
        if not isinstance(ids, dict):  # of a unigram model: pairs of token and score
            ids = {token: place for place, (token, _) in enumerate(ids)}
        added = {token["content"]: token["id"] for token in made.get("added_tokens", ())}
        merges = made["model"].get("merges") or ()
        return {**ids, **added}, [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    except READ_ERRORS:
        return None


def tokens_differ(policy: Mapping[str, int], own: Mapping[str, int]) -> str:
    """The first token of the policy's vocabulary that is another, or none, in a model's own; '' if each is the same."""
    for token, number in sorted(policy.items(), key=lambda item: item[1]):
        if own.get(token) != number:
            theirs = f"token {own[token]}" if token in own else "none"
            return f"{token!r} is token {number} of the policy, and {theirs} of this model"
    return ""


def _parameters(directory: Path) -> int | None:
    """Parameter count from the headers of the weights' files, else computed from the configuration."""
    for count in (_in_files, _by_configuration):
        try:
            parameters = count(directory)
        except READ_ERRORS:
            continue  # reported when the model is loaded
        if parameters:
            return parameters
    return None


def _shape(directory: Path) -> Shape | None:
    try:
        config = read_json(directory / "config.json")
        return shape_of(config["text_config"] if config.get("model_type") in VISION else config)
    except READ_ERRORS:
        return None


def _in_files(directory: Path, within: str = "") -> int:
    """Parameters of the tensors with this part in their names."""
    shapes = ((name, shape) for file in _files(directory) for name, shape in _shapes(file).items())
    return sum(math.prod(shape) for name, shape in shapes if within in name)


def _active(directory: Path, parameters: int) -> float | None:
    """Of a mixture whose files are there, the parameters that each token passes."""
    try:
        idle = idle_share(read_json(directory / "config.json"))
        return parameters - idle * _in_files(directory, ".experts.") if idle else None
    except READ_ERRORS:
        return None


def _frozen(directory: Path, model: Model) -> int | None:
    """Parameters in the policy's files that the job freezes; None where these cannot be read, or name none."""
    try:
        reads_images = read_json(directory / "config.json").get("model_type") in VISION
        shapes = {name: shape for file in _files(directory) for name, shape in _shapes(file).items()}
    except READ_ERRORS:
        return None
    sees = reads_images and not model.train_vision
    tied = model.is_frozen(_HEAD) and _HEAD not in shapes

    def is_frozen(name: str) -> bool:
        return (
            model.is_frozen(_parameter_of(name))
            or (sees and is_of_part(name, "visual"))
            or (tied and is_of_part(name, "embed_tokens"))
        )

    return sum(math.prod(shape) for name, shape in shapes.items() if is_frozen(name)) or None


def _parameter_of(name: str) -> str:
    """The parameter that a file's tensor becomes, or a part of which it does: Transformers fuses experts."""
    if not _EXPERT.search(name):
        return name
    return re.sub(r"\.(gate|up)_proj\b", ".gate_up_proj", _EXPERT.sub(".experts.", name))


def _files(directory: Path) -> list[Path]:
    index = directory / _INDEX
    names = shard_names(read_json(index)) if index.is_file() else {_WEIGHTS}
    return [directory / name for name in names]


def _shapes(file: Path) -> dict[str, list[int]]:
    with open_regular(file) as opened:
        return {name: _dimensions(entry["shape"]) for name, entry in tensor_entries(opened).items()}


def _dimensions(shape: Any) -> list[int]:
    """The shape. Raises ValueError for what is none."""
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError("a shape is a list of few numbers")
    if not all(isinstance(size, int) and 0 <= size < 2**63 for size in shape):
        raise ValueError("a shape is of whole numbers from 0 on")
    return shape


def _by_configuration(directory: Path) -> int | None:
    return count_parameters(read_json(directory / "config.json"))
