"""Measures the time that the record of a step's timeline takes from the trainer.

    .venv/bin/python benchmarks/trainer/timeline.py [--ranks 2] [--steps 300] [--spans 20]

Ranks of one machine record steps of so many spans each, and rank 0 writes them to a file, as a trainer does; gloo
gathers them. Prints milliseconds a step, the median of rank 0: of the spans themselves, of gathering and writing.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed

from rlhf_api.contract.timeline import FILE, StepTimeline
from rlhf_trainer.metrics.recording import gather_times
from rlhf_trainer.metrics.step_lines import StepLines
from rlhf_trainer.process import timeline
from rlhf_trainer.ranks.ranks import Ranks


def work(rank: int, ranks: int, steps: int, spans: int, folder: str) -> None:
    store = Path(folder, "store").as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    timeline.SHORTEST = 0.0  # nothing is done in these
    place, file = Ranks(rank, ranks, torch.device("cpu")), StepLines(Path(folder, FILE), 16 << 20, 0)
    recorded, written = list[float](), list[float]()
    for step in range(1, steps + 1):
        distributed.barrier()
        began = time.perf_counter()
        timeline.RECORDER.begin_step()
        for number in range(spans):
            with timeline.RECORDER.measure(f"node_{number}"):
                pass
        between = time.perf_counter()
        at, all_spans = gather_times(place)
        if rank == 0:
            file.add(step, [StepTimeline(step=step, time=at, seconds=1.0, spans=tuple(all_spans))])
        recorded.append(between - began)
        written.append(time.perf_counter() - between)
    if rank == 0:
        size = Path(folder, FILE).stat().st_size / steps
        parts = (1000 * statistics.median(times) for times in (recorded, written))
        print("{:.3f} ms of spans, {:.3f} ms to gather and write; {:.0f} bytes a step".format(*parts, size))
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--spans", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shared = (arguments.ranks, arguments.steps, arguments.spans, folder)
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=work, args=(rank, *shared)) for rank in range(arguments.ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
