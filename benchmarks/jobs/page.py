"""The first reply of the page about a long run, against TensorBoard's reader of the same figures.

    .venv/bin/python benchmarks/jobs/page.py [--steps 10000] [--figures 200] [--tensorboard PYTHON]

Writes a run with so many random figures as `metrics.jsonl` and as TensorBoard's event files, and prints seconds of
processor time: of the page, the least of three, from nothing to the reply about the run and the one with the values of
its eight charts; and of the event files in TensorBoard's reader, with the 1000 steps a figure that it keeps by default,
in another Python that has the package `tensorboard`. Without it only the page is measured.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tensorboardX import SummaryWriter
from tests.support.run_folders import write_run

from rlhf_api.host import strict_json
from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog

KNOWN = ("reward_mean", "kl_mean", "entropy", "response_length_mean", "finished_share", "loss", "seconds")
ROUNDS = 3
READER = """
import sys, time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
began = time.process_time()
events = EventAccumulator(sys.argv[1]).Reload()
read = [events.Scalars(tag) for tag in events.Tags()["scalars"]]
print(time.process_time() - began)
"""


def name_figures(figures: int) -> list[str]:
    return [*KNOWN, *(f"figure_{number}" for number in range(figures - len(KNOWN)))]


def make_rows(steps: int, figures: int) -> list[dict[str, float]]:
    names, numbers = name_figures(figures), random.Random(1)
    return [{"step": step, **{name: numbers.random() for name in names}} for step in range(1, steps + 1)]


def write_both(folder: Path, steps: int, figures: int) -> tuple[Path, Path]:
    names, rows = name_figures(figures), make_rows(steps, figures)
    run = write_run(folder / "run", steps=rows)
    with SummaryWriter(str(folder / "events"), max_queue=1000) as writer:
        for row in rows:
            for name in names:
                writer.add_scalar(name, row[name], row["step"])
    return run, folder / "events"


def read_page(run: Path) -> float:
    """Seconds of the page's replies."""
    began = time.process_time()
    catalog = Catalog([run])
    (entry,) = catalog.runs()
    first = answer(catalog, f"/runs/{entry.id}", {})
    names = ",".join(name for chart in first["first"] for name in chart["names"])
    values = answer(catalog, f"/runs/{entry.id}/metrics", {"names": names})
    strict_json.dumps(first)
    strict_json.dumps(values)
    return time.process_time() - began


def read_events(python: str, events: Path) -> float:
    """Seconds of TensorBoard's reader."""
    command = [python, "-c", READER, str(events)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--figures", type=int, default=200)
    parser.add_argument("--tensorboard", metavar="PYTHON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run, events = write_both(Path(scratch), arguments.steps, arguments.figures)
        page = min(read_page(run) for _ in range(ROUNDS))
        print(f"page {page:.2f} s", flush=True)
        if arguments.tensorboard:
            theirs = read_events(arguments.tensorboard, events)
            print(f"TensorBoard {theirs:.2f} s, {theirs / page:.0f} times as long")


if __name__ == "__main__":
    main()
