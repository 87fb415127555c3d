"""Cost of other work on the machine to a run on CPUs, whose compute threads sleep or spin while they wait.

    .venv/bin/python benchmarks/jobs/shared_cores.py [--manifest FILE] [--steps N] [--busy N]

Runs the manifest (the sentiment example's `sft.yaml`) four times: alone and beside processes that each keep a core
busy, with threads that sleep, as shipped, and with threads that spin, as torch's own default is. Prints the median
seconds of a step and the ratio to the step alone with the same threads.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from main_job import WARM_UP, measure

THREADS = {"sleep": [], "spin": ["spec.env.GOMP_SPINCOUNT='300000'"]}
"""By what a waiting thread does, the overrides. The number is what libgomp spins where nothing is said."""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Others at work: that many, each on a core if it gets one."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def seconds(manifest: Path, steps: int, overrides: list[str]) -> float:
    """The median of a fresh run's steps."""
    rows, _ = measure(manifest, steps, overrides)
    return statistics.median(row["seconds"] for row in rows[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--manifest", type=Path, default=Path("examples/sentiment/sft.yaml"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--busy", type=int, default=1, help="processes that each keep a core busy")
    options = parser.parse_args()
    print(f"{'threads':<8} {'alone s':>8} {'beside s':>9} {'ratio':>6}")
    for threads, overrides in THREADS.items():
        alone = seconds(options.manifest, options.steps, overrides)
        with busy(options.busy):
            beside = seconds(options.manifest, options.steps, overrides)
        print(f"{threads:<8} {alone:>8.3f} {beside:>9.3f} {beside / alone:>6.2f}")


if __name__ == "__main__":
    main()
