"""Two ranks over gloo: rank 0 may work alone for longer than a collective waits, and a rank that dies is noticed."""

import itertools
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.forked.forks import fork, torchrun
from torch import distributed

from rlhf_trainer.process import progress
from rlhf_trainer.ranks import heartbeat, ranks

ARRAYS = {
    "floats": torch.arange(6.0).reshape(2, 3).T,
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, dtype=torch.int64),
    "number": torch.tensor(1 << 40),
}


def shares(timeout: float, seconds: float, folder: Path) -> None:
    """A rank that gets from rank 0 what this one makes alone, and then at once."""
    heartbeat.HEARTBEAT_SECONDS = seconds
    mine = ranks.Ranks.join(0)
    distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout))
    (folder / f"joined-{mine.rank}").touch()

    def make() -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        (folder / "working").touch()
        while not (folder / "done").exists():
            time.sleep(0.01)
        return {}, {"text": "late"}

    try:
        with ranks.raise_if_rank_lost():
            for expected in ("late", "soon"):
                arrays, header = mine.share(
                    make if expected == "late" else lambda: (ARRAYS, {"text": "soon"})
                )
                assert header == {"text": expected}, header
        assert list(arrays) == list(ARRAYS)
        assert all(
            arrays[name].dtype == array.dtype and arrays[name].equal(array) for name, array in ARRAYS.items()
        )
        end("shared")
    except ranks.RankLost:
        end("lost")


def joins() -> None:
    """Rank 0 waits for the other one, and goes no further."""
    if os.environ["RANK"] == "0":
        port = int(os.environ["MASTER_PORT"])
        _store = distributed.TCPStore("127.0.0.1", port, 2, is_master=True)
        print("both are here", flush=True)
        time.sleep(600)
    try:
        ranks.Ranks.join(0)
    except ranks.RankLost:
        end("lost")


def gets_on() -> None:
    ranks.STOP_SECONDS = 0.05
    mine = ranks.Ranks.join(0)
    mine.watch_each_other(threading.Event())
    if mine.first:  # it waits for the other, which loads
        while progress.count() < 3:
            time.sleep(0.01)
        end("heard")
    for done in itertools.count(1):
        progress.sign()
        assert progress.count() == done, "it hears of its own signs alone"
        time.sleep(0.1)


def sends_within() -> None:
    """Rank 0 has the other one take part in collectives while that waits for a message."""
    heartbeat.HEARTBEAT_SECONDS = 0.001
    mine = ranks.Ranks.join(0)

    def send() -> str:
        for number in range(100):
            assert mine.broadcast_str(lambda number=number: str(number)) == str(number)
            assert add(5) == 10
        return "done"

    if mine.first:
        mine.broadcast_str(send)
    else:
        for number in range(100):
            assert mine.broadcast_str(lambda: "") == str(number)
            assert add(5) == 10
        assert mine.broadcast_str(lambda: "") == "done"
    end("shared")


def add(number: int) -> int:
    total = torch.tensor(number)
    distributed.all_reduce(total)
    return int(total)


def runs_out_of_memory() -> None:
    """Rank 0 has none for another thread. Each of gloo's own has sent before, and has its thread-local data."""
    mine = ranks.Ranks.join(0)
    for word in (*map(str, range(32)), "last"):
        if mine.first and word == "last":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 20, resource.RLIM_INFINITY))
        assert mine.broadcast_str(lambda word=word: word) == word
    end("shared")


def end(word: str) -> None:
    """Without what gloo still does."""
    print(word, flush=True)
    os._exit(0)


@dataclass(frozen=True)
class Rank:
    process: BaseProcess
    out: Path

    def read_output(self) -> str:
        return self.out.read_text().strip()

    def ends(self) -> str:
        """Waits for the process's end; returns its whole output."""
        self.process.join(240)
        assert self.process.exitcode is not None
        return self.read_output()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)


@contextmanager
def two_ranks(folder: Path, work: Callable[..., None], *arguments: object) -> Iterator[list[Rank]]:
    """Both are killed afterwards."""
    log, started = folder / "ranks.log", []
    try:
        for rank, environ in enumerate(torchrun(2)):
            out = folder / f"rank-{rank}.out"
            started.append(Rank(fork(work, *arguments, log=log, out=out, **environ), out))
        yield started
    finally:
        for rank in started:
            rank.kill()


Start = Callable[[float, float], list[Rank]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts both ranks with a timeout and a heartbeat in seconds; returns when both have joined, and rank 0 works
    alone."""
    with ExitStack() as stack:

        def both(timeout: float, seconds: float) -> list[Rank]:
            started = stack.enter_context(two_ranks(tmp_path, shares, timeout, seconds, tmp_path))
            for mark in ("working", "joined-1"):
                wait_for((tmp_path / mark).exists, started)
            return started

        yield both


def wait_for(met: Callable[[], object], started: list[Rank]) -> None:
    while not met():
        assert all(rank.process.exitcode is None for rank in started)
        time.sleep(0.01)


def test_a_limit_that_this_process_has_reached_is_no_lost_rank():
    gloo = "[enforce fail at /x/gloo/gloo/transport/tcp/loop.cc:105] fd_ != -1. epoll_create: Too many open files"
    with pytest.raises(RuntimeError, match=r"^\[enforce fail") as caught, ranks.raise_if_rank_lost():
        raise RuntimeError(gloo)
    assert not isinstance(caught.value, ranks.RankLost)


def test_rank_0_may_work_alone_for_longer_than_a_collective_waits(start, tmp_path):
    first, other = start(15.0, 0.5)
    other.process.join(20.0)
    assert other.process.exitcode is None
    (tmp_path / "done").touch()
    assert [first.ends(), other.ends()] == ["shared", "shared"]


def test_without_heartbeats_the_wait_would_end(start):
    """The time that a collective waits is what the test above stays beyond."""
    _, other = start(1.0, 600.0)
    assert other.ends() == "lost"


def test_rank_0_is_missed_when_it_dies_at_its_work(start):
    first, other = start(600.0, 600.0)
    first.kill()
    assert other.ends() == "lost"


def test_rank_0_tells_of_what_another_rank_gets_done(tmp_path):
    with two_ranks(tmp_path, gets_on) as (first, other):
        assert first.ends() == "heard"
        assert other.process.exitcode is None


def test_rank_0_is_missed_when_it_dies_while_they_join(tmp_path):
    with two_ranks(tmp_path, joins) as (first, other):
        wait_for(lambda: first.out.exists() and first.read_output() == "both are here", [first, other])
        first.kill()
        assert other.ends() == "lost"


def test_another_rank_is_missed_while_rank_0_works(start, tmp_path):
    first, other = start(600.0, 0.1)
    other.kill()
    (tmp_path / "done").touch()
    assert first.ends() == "lost"


@pytest.mark.parametrize("work", [sends_within, runs_out_of_memory])
def test_both_get_each_message(work, tmp_path):
    with two_ranks(tmp_path, work) as (first, other):
        assert [first.ends(), other.ends()] == ["shared", "shared"], (tmp_path / "ranks.log").read_text()
