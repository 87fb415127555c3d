"""Manifests that a user's own function makes, named `package.module:name` where a file's path would stand."""

from collections.abc import Mapping
from typing import Any

from .imports import look_here, named_object
from .problems import InvalidJob, Problem, show


def experiment(name: str) -> Any:
    """The document that the function returns; modules are looked for in the current directory first.

    Raises InvalidJob where it cannot be imported, raises an error itself, or returns no object.
    """
    look_here()
    try:
        document = named_object(name)()
    except Exception as error:
        raise InvalidJob([Problem(name, f"makes no manifest: {type(error).__name__}: {error}")]) from error
    if not isinstance(document, Mapping):
        raise InvalidJob([Problem(name, f"must return a manifest as a dict; got {show(document)}")])
    return document
