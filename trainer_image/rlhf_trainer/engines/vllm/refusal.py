"""Options that vLLM's own parser refuses, as a problem of the manifest's field."""

import importlib
from typing import Any, NoReturn

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.roles import Role


def of_options(role: Role) -> None:
    """Makes vLLM's parsers raise InvalidJob, where they would print their usage and exit, and the role be started
    again."""
    parsers: Any = importlib.import_module("vllm.utils.argparse_utils")

    def error(_parser: Any, message: str) -> NoReturn:
        where = f"spec.{role.value}.engineArguments"
        raise InvalidJob([Problem(where, f"vLLM refuses its options: {message}")])

    parsers.FlexibleArgumentParser.error = error
