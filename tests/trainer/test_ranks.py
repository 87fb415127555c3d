"""Two ranks over gloo: rank 0 may work alone for longer than a collective waits, and a rank that dies is noticed."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.ranks import two_ranks

RANK = """
import pathlib, sys, time
from datetime import timedelta
import torch
from rlhf_trainer.comms import ranks

ranks.GANG_TIMEOUT, ranks.HEARTBEAT_SECONDS = timedelta(seconds=float(sys.argv[1])), float(sys.argv[2])
mine, folder = ranks.Ranks.join(0), pathlib.Path(sys.argv[3])

def make():
    (folder / "working").touch()
    while not (folder / "done").exists():
        time.sleep(0.01)
    return {}, {"text": "late"}

arrays = {
    "floats": torch.arange(6.0).reshape(2, 3).T,
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, dtype=torch.int64),
    "number": torch.tensor(1 << 40),
}

try:
    with ranks.raise_if_rank_lost():
        for expected in ("late", "soon"):
            found, header = mine.share(make if expected == "late" else lambda: (arrays, {"text": "soon"}))
            assert header == {"text": expected}, header
    assert list(found) == list(arrays)
    assert all(found[name].dtype == array.dtype and found[name].equal(array) for name, array in arrays.items())
    print("shared")
except ranks.RankLost:
    print("lost")
sys.stdout.flush()
import os; os._exit(0)
"""
JOIN = """
import os, sys, time
import torch.distributed as dist
from rlhf_trainer.comms.ranks import RankLost, Ranks

if os.environ["RANK"] == "0":
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, is_master=True)
    print("both are here", flush=True)
    time.sleep(600)
try:
    Ranks.join(0)
except RankLost:
    print("lost")
"""
GETS_ON = """
import os, threading, time
from rlhf_trainer import progress
from rlhf_trainer.comms import ranks

ranks.STOP_SECONDS = 0.05
mine = ranks.Ranks.join(0)
mine.watch_each_other(threading.Event())
if mine.first:  # it waits for the other, which loads
    while progress.count() < 3:
        time.sleep(0.01)
    print("heard", flush=True)
else:
    for done in range(1, 600):
        progress.sign()
        assert progress.count() == done, "it hears of its own signs alone"
        time.sleep(0.1)
os._exit(0)
"""
Start = Callable[[float, float], list[subprocess.Popen[str]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts both ranks with a timeout and a heartbeat in seconds; returns when rank 0 works alone."""
    with ExitStack() as stack:

        def both(timeout: float, heartbeat: float) -> list[subprocess.Popen[str]]:
            ranks = two_ranks("-c", RANK, str(timeout), str(heartbeat), str(tmp_path))
            started = stack.enter_context(ranks)
            wait_for(tmp_path / "working", started)
            return started

        yield both


def wait_for(file: Path, processes: list[subprocess.Popen[str]]) -> None:
    while not file.exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)


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


def test_rank_0_tells_of_what_another_rank_gets_done():
    with two_ranks("-c", GETS_ON) as (first, other):
        assert ends(first) == "heard"
        assert other.poll() is None


def test_rank_0_is_missed_when_it_dies_while_they_join():
    with two_ranks("-c", JOIN) as (first, other):
        assert first.stdout is not None
        assert first.stdout.readline() == "both are here\n"
        first.kill()
        assert ends(other) == "lost"


def test_another_rank_is_missed_while_rank_0_works(start, tmp_path):
    first, other = start(600.0, 0.1)
    other.kill()
    other.wait()
    (tmp_path / "done").touch()
    assert ends(first) == "lost"
