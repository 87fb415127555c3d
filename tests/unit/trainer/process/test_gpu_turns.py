"""Turns on GPUs that several processes share."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_api.errors.problem import InvalidJob
from rlhf_trainer.process.gpu_turns import INHERITED, GpuTurns, own_gpus, release_inherited

HOLDER = """
import sys, os
from pathlib import Path
from rlhf_trainer.process.gpu_turns import GpuTurns
turns = GpuTurns(Path(sys.argv[1]), sys.argv[2].split(","))
turns.begin(60)
os.environ |= turns.pass_on()
os.execv(sys.executable, [sys.executable, "-c", sys.argv[3]])
"""
WAITS = "print('begun', flush=True); input()"
RELEASES = """
import os, subprocess, sys
from rlhf_trainer.process.gpu_turns import release_inherited
if not os.fork(): input()
release_inherited(os.environ)
print('released', flush=True); input()
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that takes turns, and then becomes a program."""
    started = []

    def start(gpus: str, program: str) -> subprocess.Popen:
        command = [sys.executable, "-c", HOLDER, str(tmp_path), gpus, program]
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        )
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_turn_is_waited_for_and_begins_when_its_holder_is_killed(holder, tmp_path: Path):
    process, waits = holder("0,1", WAITS), []

    def waiting() -> None:
        waits.append(1)
        if len(waits) == 3:
            process.kill()

    turns = GpuTurns(tmp_path, ["1"])
    turns.begin(60, waiting)
    assert len(waits) >= 3
    turns.end()


def test_a_turn_that_does_not_come_in_time_leaves_none_taken(holder, tmp_path: Path):
    holder("1", WAITS)
    with pytest.raises(TimeoutError, match="another process had this GPU's turn for 0 s"):
        GpuTurns(tmp_path, ["0", "1"]).begin(0)
    GpuTurns(tmp_path, ["0"]).begin(0)


def test_a_program_releases_what_was_taken_before_it_though_its_children_have_copies(holder, tmp_path: Path):
    holder("0", RELEASES)
    GpuTurns(tmp_path, ["0"]).begin(0)


def test_turns_of_other_gpus_are_not_waited_for(holder, tmp_path: Path):
    holder("0", WAITS)
    GpuTurns(tmp_path, ["1", "GPU-3f/2"]).begin(0)


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def lock(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", lock)
    with pytest.raises(InvalidJob, match=r"--workdir: .*No locks available; use a local disk"):
        GpuTurns(tmp_path, ["0"])
    (tmp_path / "file").touch()
    with pytest.raises(InvalidJob, match=r"--workdir: .*Not a directory"):
        GpuTurns(tmp_path / "file" / "turns", ["0"])


def test_without_a_gpu_there_is_nothing_to_take(tmp_path: Path):
    turns = GpuTurns(tmp_path, own_gpus({}))
    turns.begin(0)
    assert turns.pass_on() == {INHERITED: ""}
    release_inherited({INHERITED: ""})
    assert own_gpus({"CUDA_VISIBLE_DEVICES": "0, GPU-1"}) == ["0", "GPU-1"]
