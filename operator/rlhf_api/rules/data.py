"""Rules of `spec.data`: sources and their weights."""

from collections.abc import Iterator

from ..errors.problem import Problem, show
from ..sections.data import parsed
from ..spec import Spec


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of the sources of `spec.data`."""
    data = spec.data
    if (data.train is None) == (data.sources is None):
        given = "neither is" if data.train is None else "both are"
        yield Problem(
            "spec.data", f"needs exactly one of train (paths) and sources (objects with path); {given} set"
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
