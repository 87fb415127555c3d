"""The operator's extra stands alone."""

import subprocess
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1] / ".venv-operator" / "bin" / "python"

CHECK = """
import importlib.util, pkgutil, rlhf_api, rlhf_operator
for package in (rlhf_api, rlhf_operator):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        __import__(module.name)
for absent in ("torch", "numpy", "transformers", "vllm", "deepspeed"):
    assert importlib.util.find_spec(absent) is None, absent
"""


@pytest.mark.skipif(not PYTHON.exists(), reason="`make test` makes this environment")
def test_the_operator_extra_imports_without_torch(tmp_path):
    subprocess.run([PYTHON, "-c", CHECK], check=True, cwd=tmp_path)
