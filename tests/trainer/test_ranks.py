"""Two ranks over gloo: rank 0 may work alone for longer than a collective waits, and a rank that dies is noticed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.vllm_server import free_port

RANK = """
import pathlib, sys, time
from datetime import timedelta
from rlhf_trainer.comms import ranks

ranks.GANG_TIMEOUT, ranks.HEARTBEAT_SECONDS = timedelta(seconds=float(sys.argv[1])), float(sys.argv[2])
mine, folder = ranks.Ranks.join(0), pathlib.Path(sys.argv[3])

def make():
    (folder / "working").touch()
    while not (folder / "done").exists():
        time.sleep(0.01)
    return {}, {"text": "late"}

try:
    with mine.raise_if_rank_lost():
        for expected in ("late", "soon"):
            _, header = mine.share(make if expected == "late" else lambda: ({}, {"text": "soon"}))
            assert header == {"text": expected}, header
    print("shared")
except ranks.RankLost:
    print("lost")
sys.stdout.flush()
import os; os._exit(0)
"""
Start = Callable[[float, float], list[subprocess.Popen[str]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts both ranks with a timeout and a heartbeat in seconds; returns when rank 0 works alone."""
    started: list[subprocess.Popen[str]] = []

    def both(timeout: float, heartbeat: float) -> list[subprocess.Popen[str]]:
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        for rank in range(2):
            command = [sys.executable, "-c", RANK, str(timeout), str(heartbeat), str(tmp_path)]
            started.append(
                subprocess.Popen(
                    command,
                    env=os.environ | variables | {"RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        wait_for(tmp_path / "working", started)
        return started

    yield both
    for process in started:
        process.kill()
        process.communicate()


def wait_for(file: Path, processes: list[subprocess.Popen[str]]) -> None:
    while not file.exists():
        assert all(process.poll() is None for process in processes)


def ends(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=60)[0].strip()


def test_rank_0_may_work_alone_for_longer_than_a_collective_waits(start, tmp_path):
    first, other = start(5.0, 0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        other.wait(timeout=12.0)
    (tmp_path / "done").touch()
    assert [ends(first), ends(other)] == ["shared", "shared"]


def test_without_heartbeats_the_wait_would_end(start):
    """The time that a collective waits is what the test above stays beyond."""
    _, other = start(5.0, 600.0)
    assert ends(other) == "lost"


def test_rank_0_is_missed_when_it_dies_at_its_work(start):
    first, other = start(600.0, 600.0)
    first.kill()
    assert ends(other) == "lost"


def test_another_rank_is_missed_while_rank_0_works(start, tmp_path):
    first, other = start(600.0, 0.1)
    other.kill()
    other.wait()
    (tmp_path / "done").touch()
    assert ends(first) == "lost"
