"""Imports functions that a manifest names, and libraries without what they bring along. Imports no torch."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.imports import described, named_object

Function = Callable[..., Any]


def import_function(path: str, where: str) -> Function:
    """The function `module:name`. Raises InvalidJob, naming the field `where`, if it cannot be imported."""
    try:
        function = named_object(path)
    except Exception as error:
        raise InvalidJob([Problem(where, f"{path!r} cannot be imported: {described(error)}")]) from error
    if not callable(function):
        raise InvalidJob([Problem(where, f"{path!r} is a {type(function).__name__}, not a function")])
    result: Function = function
    return result


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """The module cannot be imported inside the context, unless it was before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
