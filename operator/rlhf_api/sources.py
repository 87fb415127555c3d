"""Sources of a dataset: paths with weights, as strings or as objects."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .base import SCHEMES, Frozen, PositiveFloat
from .problems import Problem, show

if TYPE_CHECKING:
    from .spec import Spec


class Source(Frozen):
    """A file of rows, with its share of the mixture."""

    path: str
    """JSON, JSONL or Parquet: a path, or the URL of an object (`s3://`, `gs://`, `az://`). Or `package.module:name`, a
    function of your own that returns a sequence of rows."""
    weight: PositiveFloat | None = None
    """Weight of the source: its share of an epoch's samples is this over the sum of all. Set it for every source or for
    none (by rows).
    """
    system_prompt: str | None = None
    """Overrides `data.systemPrompt`; an empty one too."""


def parsed(text: str) -> Source:
    """Parses `path` or `path::weight`. Raises ValueError unless the weight is a number above 0."""
    path, separator, weight = text.rpartition("::")
    if not separator:
        return Source(path=text)
    number = float(weight)
    if not 0 < number < float("inf"):
        raise ValueError(weight)
    return Source(path=path, weight=number)


def unknown_store(path: str) -> str:
    """Problem of a URL whose kind of store is not read, such as `hf://` or `https://`; '' for any other."""
    scheme, url, _ = path.partition("://")
    stores = ", ".join(f"{known}://" for known in SCHEMES)
    wrong = f"must be a path, or begin with {stores}; download it first; got {path!r}"
    return wrong if url and scheme not in SCHEMES else ""


def training_sources(spec: "Spec") -> tuple[Source, ...]:
    """The sources of a validated `spec.data`, each with its system prompt."""
    data = spec.data
    given = data.sources or tuple(map(parsed, data.train or ()))
    usual = {"system_prompt": data.system_prompt}
    return tuple(
        source.model_copy(update=usual) if source.system_prompt is None else source for source in given
    )


def problems(spec: "Spec") -> Iterator[Problem]:
    """Problems of the sources of `spec.data`."""
    data = spec.data
    if (data.train is None) == (data.sources is None):
        seen = "neither is" if data.train is None else "both are"
        yield Problem(
            "spec.data", f"needs exactly one of train (paths) and sources (objects with path); {seen} set"
        )
    weights: list[float | None] = [source.weight for source in data.sources or ()]
    for i, text in enumerate(data.train or ()):
        try:
            weights.append(parsed(text).weight)
        except ValueError:
            message = f"must be a path, or path::weight with a number above 0; got {show(text)}"
            yield Problem(f"spec.data.train[{i}]", message)
    if None in weights and any(weights):
        field = "train" if data.train is not None else "sources"
        where = f"spec.data.{field}[{weights.index(None)}]"
        yield Problem(where, "has no weight, and others have: give every source one, or none")
