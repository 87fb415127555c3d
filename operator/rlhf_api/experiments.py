"""Manifests returned by a user's function, which is named `package.module:name` instead of a file."""

from collections.abc import Mapping
from typing import Any

from .imports import look_here, named_object
from .problems import InvalidJob, Problem, show


def experiment(name: str) -> Any:
    """The document that the function returns; modules are searched in the current directory first.

    Raises InvalidJob if it cannot be imported, raises, or does not return an object.
    """
    look_here()
    try:
        document = named_object(name)()
    except Exception as error:
        raise InvalidJob([Problem(name, f"makes no manifest: {type(error).__name__}: {error}")]) from error
    if not isinstance(document, Mapping):
        raise InvalidJob([Problem(name, f"must return a manifest as a dict; got {show(document)}")])
    return document
