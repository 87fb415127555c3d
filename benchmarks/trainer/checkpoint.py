"""Checkpoints in an object store: speed against the same client's raw put and get, stall, resume time and memory.

.venv/bin/python benchmarks/trainer/checkpoint.py --megabytes 10 1000 4000

A real S3 server (SeaweedFS) on this machine, which shares its cores and its disk with the client; or any store that
`--store` names. Raw: the same bytes as objects of the same size, as many at a time. Ratios are within one run.
"""

import argparse
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from safetensors.torch import save

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.servers.seaweed import running

from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.reading import AHEAD, Snapshot
from rlhf_trainer.checkpoint.saver import UPLOADS, Saver
from rlhf_trainer.checkpoint.segments import SEGMENT_BYTES
from rlhf_trainer.ranks.ranks import Ranks

ALONE = Ranks(0, 1, torch.device("cpu"))
MEGABYTE = 1_000_000
TENSOR_MEGABYTES = 8


def tensors(megabytes: int, seed: int) -> dict[str, torch.Tensor]:
    """Random float32 weights of so many megabytes."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, megabytes // TENSOR_MEGABYTES)
    numbers = megabytes * MEGABYTE // 4 // count
    return {f"layer.{i}": torch.randn(numbers, generator=generator) for i in range(count)}


class Peak:
    """The highest resident memory of this process while it is watched, in MB above the start."""

    def __init__(self) -> None:
        self._process, self._over = psutil.Process(), threading.Event()
        self._start = self._most = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self._most = max(self._most, self._process.memory_info().rss)

    def end(self) -> float:
        self._over.set()
        self._thread.join()
        return (self._most - self._start) / MEGABYTE


def seconds(run) -> float:
    os.sync()  # what an earlier phase wrote is not written at the cost of this one
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def raw(archive: Archive, megabytes: int) -> tuple[float, float]:
    """Seconds to put and to get the same amount, in objects of a segment's size, as many at a time as a trainer."""
    whole = save(tensors(min(megabytes, math.ceil(SEGMENT_BYTES / MEGABYTE)), seed=1))
    count = max(1, round(megabytes * MEGABYTE / len(whole)))
    keys = [f"raw/{i}" for i in range(count)]
    with ThreadPoolExecutor(UPLOADS) as pool:
        put = seconds(lambda: list(pool.map(lambda key: archive.store.put(key, whole), keys)))
    with ThreadPoolExecutor(AHEAD) as pool:
        got = seconds(lambda: sum(len(data) for data in pool.map(archive.store.get, keys)))
    archive.store.delete(keys)
    return put, got


def measure(url: str, megabytes: int) -> str:
    archive = Archive(url)
    put, got = raw(archive, megabytes)
    committer = Committer.take_over(archive, Retention(last=1))
    saver = Saver(ALONE, archive, committer, committed=lambda _cut: None)
    model = tensors(megabytes, seed=2)
    os.sync()
    peak = Peak()
    began = time.perf_counter()
    saver.begin(1, {}, {"model": model.items()}, {})
    stall = time.perf_counter() - began
    saver.finish()
    wrote, memory = time.perf_counter() - began, peak.end()
    peak = Peak()

    def read() -> None:
        cut = Snapshot.open(ALONE, archive, archive.entries()[-1])
        for name, tensor in model.items():
            tensor.copy_(cut.tensor("model", name))

    resumed, reading = seconds(read), peak.end()
    archive.store.delete(
        [listed_object.key for kind in ("segments", "cuts") for listed_object in archive.store.list(kind)]
    )
    archive.store.delete(["LATEST"])
    speeds = (
        megabytes / put,
        megabytes / wrote,
        put / wrote,
        megabytes / got,
        megabytes / resumed,
        got / resumed,
    )
    rest = f"{stall:.3f} | {resumed:.2f} | {memory:.0f} | {reading:.0f} |"
    return "| {} | {:.0f} | {:.0f} | {:.2f} | {:.0f} | {:.0f} | {:.2f} | ".format(megabytes, *speeds) + rest


@contextmanager
def store(named: str | None) -> Iterator[str]:
    if named is not None:
        yield named
        return
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as server:
        os.environ.update(server.address.environment)
        yield server.address.url("benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 1000, 4000])
    parser.add_argument(
        "--store", metavar="URL", help="an empty prefix; SeaweedFS on this machine unless given"
    )
    options = parser.parse_args()
    print(
        "| MB | raw put MB/s | save MB/s | ratio | raw get MB/s | load MB/s | ratio | stall s | resume s |",
        end="",
    )
    print(" memory of saving MB | of loading MB |")
    print("|" + " --- |" * 11)
    with store(options.store) as url:
        for megabytes in options.megabytes:
            print(measure(url, megabytes), flush=True)


if __name__ == "__main__":
    main()
