"""Asks the interpreter that `spec.environment.python` names whether workers can run in it."""

from functools import cache

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.interpreter import problem_by_running
from rlhf_api.sections.environment import PYTHON, Environment


def check_interpreter(section: Environment) -> None:
    """Raises InvalidJob where they cannot. An interpreter in which they can is started for it once in a process: by a
    trainer before its models are loaded, and by none of its workers' pools again."""
    if section.python is not None:
        _run_once(section.python)


def check_local_interpreter(section: Environment | None) -> None:
    """As `check_interpreter`, of a trainer: one that a role's processes run is that of their image."""
    if section is not None and not section.replicas:
        check_interpreter(section)


@cache  # no error is kept
def _run_once(python: str) -> None:
    if reason := problem_by_running(python):
        raise InvalidJob([Problem(PYTHON, f"{reason}; got {python!r}")])
