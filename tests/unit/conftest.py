"""Fixtures of unit tests of several packages."""

import subprocess
from pathlib import Path

import pytest
import yaml
from tests.support.forked import warm
from tests.support.forked.becoming import STAND_INS
from tests.unit.api.manifests import document

from rlhf_operator.local import run_process


@pytest.fixture
def small_job(tmp_path, monkeypatch) -> Path:
    """`job.yaml` in the current directory, for children of this process that are `rlhf run` with stand-in roles, forked
    from one that has imported it."""
    monkeypatch.setattr(run_process, "PROGRAM", STAND_INS)
    monkeypatch.setattr(subprocess, "Popen", warm.FromNursery)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    Path("p.jsonl").write_text('{"prompt": "hi"}\n')
    made = document("spec.data.train[0]=p.jsonl", "spec.reward.functions=[]", "spec.steps=9")
    Path("job.yaml").write_text(yaml.safe_dump(made))
    return Path("job.yaml")
