"""Turns vLLM's refusal of its options or of a model, before anything is loaded, into a problem of the role's
section."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from pydantic import ValidationError

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.roles import Role

_LIST = "Supported architectures:"
"""Begins a list of some hundred names in vLLM's message."""


@contextmanager
def refusals(role: Role, instead: str) -> Iterator[None]:
    """Turns a refusal of vLLM's parsers or configuration within the block into an InvalidJob; by itself vLLM would
    exit, and the role be started again. `instead`: what does without vLLM."""
    parsers: Any = importlib.import_module("vllm.utils.argparse_utils")
    section = f"spec.{role.value}"

    def error(_parser: Any, message: str) -> NoReturn:
        raise InvalidJob([Problem(f"{section}.engineArguments", f"vLLM refuses its options: {message}")])

    before = parsers.FlexibleArgumentParser.error
    parsers.FlexibleArgumentParser.error = error
    try:
        yield
    except ValidationError as refused:
        reasons = [each["msg"].removeprefix("Value error, ").partition(_LIST)[0] for each in refused.errors()]
        message = (
            f"vLLM refuses the model or its options: {' '.join(reasons).strip()} Use others, or {instead}"
        )
        raise InvalidJob([Problem(section, message)]) from refused
    finally:
        parsers.FlexibleArgumentParser.error = before
