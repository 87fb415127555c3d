"""Commands that run in the trainer's packages: nothing that they start outlives them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from pydantic import BaseModel

from rlhf_operator.console.trainer_packages import run_module

LEAVES = (
    "import subprocess, sys, time\n"
    "left = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
    "print(left.pid, flush=True)\n"
    "time.sleep(float(sys.argv[1]))\n"
)
RUNS = (
    "from pydantic import BaseModel\n"
    "from rlhf_operator.console.trainer_packages import run_module\n"
    "run_module('leaves', type('Nothing', (BaseModel,), {})(), '3600')\n"
)


class Nothing(BaseModel):
    """A request without fields."""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def test_nothing_that_a_command_started_is_left_at_its_end() -> None:
    done = run_module("leaves", Nothing(), "0", streams=subprocess.PIPE)
    assert done.returncode == 0
    assert not _runs(int(done.stdout))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_killed_leaves_nothing(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", RUNS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        left = int(command.stdout.readline())
        command.send_signal(number)
        command.wait()
        deadline = time.monotonic() + 60
        while _runs(left):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
