"""A trainer that has found its workers' interpreter fit, and whose pool of workers asks again."""

from pathlib import Path

import pytest
from tests.support.bare_python import PYDANTIC, make_python

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.environment import Environment
from rlhf_trainer.environments.workers.interpreter import check_interpreter, check_local_interpreter


def counting(folder: Path, python: str) -> tuple[Path, Path]:
    """An interpreter that notes each of its starts, and the file of these notes."""
    path, notes = folder / "counting" / "bin" / "python", folder / "starts"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\necho >> {notes}\nexec {python} "$@"\n')
    path.chmod(0o755)
    return path, notes


def test_an_interpreter_that_is_fit_is_started_once(tmp_path):
    python, starts = counting(tmp_path, make_python(tmp_path / "bare", *PYDANTIC))
    for _ in range(2):
        check_interpreter(Environment(path="games:Guess", python=str(python)))
    assert starts.read_text() == "\n"


def test_a_roles_interpreter_is_not_asked_by_the_trainer(tmp_path):
    """It may be in the role's image alone."""
    python, starts = counting(tmp_path, make_python(tmp_path / "bare", *PYDANTIC))
    for replicas in (2, 0):
        assert not starts.exists()
        check_local_interpreter(Environment(path="games:Guess", python=str(python), replicas=replicas))
    assert starts.exists()


def test_one_that_is_not_is_asked_again(tmp_path):
    python, starts = counting(tmp_path, "/bin/false")
    for _ in range(2):
        with pytest.raises(InvalidJob, match="is no Python interpreter"):
            check_interpreter(Environment(path="games:Guess", python=str(python)))
    assert starts.read_text() == "\n\n"
