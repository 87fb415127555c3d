"""Arguments of a tool that the model calls: those that its signature takes, of the types that its schema shows."""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def bind_arguments(tool: Callable[..., Any], given: Mapping[str, Any]) -> inspect.BoundArguments:
    """The arguments, as they are. Raises TypeError for those that the tool does not take, or not of such a type, in
    words for the model to read: `"7"` is no int."""
    signature, hints = inspect.signature(tool), get_type_hints(tool)
    bound = signature.bind(**given)
    for name, value in bound.arguments.items():
        if name in hints and signature.parameters[name].kind not in _SEVERAL:
            _check(name, value, hints[name])
    return bound


def _check(name: str, value: Any, kind: Any) -> None:
    from pydantic import (
        PydanticUserError,
        TypeAdapter,
        ValidationError,
    )  # which a class without tools does without

    try:
        TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise TypeError(f"{name}: {error.errors()[0]['msg']}") from None
    except PydanticUserError:  # a type of the user's own, of which JSON has no values
        return
