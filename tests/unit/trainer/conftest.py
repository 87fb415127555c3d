"""Programs of tests of the trainer, which start in a moment."""

import subprocess

import pytest
from tests.support.forked import warm


@pytest.fixture
def forked_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ours that the test starts are forked from a process that has imported what they import."""
    monkeypatch.setattr(subprocess, "Popen", warm.FromNursery)
