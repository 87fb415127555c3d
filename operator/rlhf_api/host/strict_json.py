"""JSON for programs of other languages: NaN and the infinities, which Python writes and JSON lacks, are null."""

import json
from collections.abc import Callable, Mapping
from math import isfinite, nan
from typing import Any


def dumps(value: Any, *, ensure_ascii: bool = True, default: Callable[[Any], Any] | None = None) -> str:
    """The value on one line; `default` as in `json.dumps`."""
    return json.dumps(_finite(value), ensure_ascii=ensure_ascii, allow_nan=False, default=default)


def figures(line: str | bytes) -> dict[str, Any]:
    """A line of figures, with NaN for those that are null. Raises ValueError for a line that is cut short, or no
    object."""
    read = json.loads(line)
    if not isinstance(read, dict):
        raise ValueError("a line of figures must be an object")
    return {name: nan if value is None else value for name, value in read.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
