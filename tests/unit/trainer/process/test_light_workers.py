"""Processes with a user's code, of which a job may have hundreds, start without what takes long to import."""

import subprocess
import sys

import pytest

LARGE = {"numpy", "pydantic", "torch", "transformers"}


@pytest.mark.parametrize(
    "module", ["rlhf_trainer.scoring.worker", "rlhf_trainer.environments.workers.worker"]
)
def test_a_worker_imports_no_large_library(module: str) -> None:
    code = f"import sys, {module}; print(*{LARGE} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"\n"
