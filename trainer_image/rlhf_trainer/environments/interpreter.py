"""Asks the interpreter that `spec.environment.python` names whether workers can run in it."""

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.interpreter import problem_by_running
from rlhf_api.sections.environment import PYTHON, Environment


def check_interpreter(section: Environment | None) -> None:
    """Raises InvalidJob where they cannot."""
    python = None if section is None else section.python
    if python is not None and (reason := problem_by_running(python)):
        raise InvalidJob([Problem(PYTHON, f"{reason}; got {python!r}")])
