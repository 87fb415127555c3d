"""Seconds of the replies of `rlhf ui` over many long runs, and its memory.

    .venv/bin/python benchmarks/jobs/page_server.py [--runs 100] [--steps 10000] [--figures 200] [--samples 1000000]

Starts the server over so many runs, each with so many random figures of so many steps, and one with so many samples.
Prints seconds by the clock: of the list of runs, the least and the most of the first view of each run (its description
and the values of its eight charts), of pages of samples in several orders once all of them were read, of a search in
all, and from the moment in which a step is appended to the reply that has it; processor seconds of the server; and its
peak of memory. Runs share one file of figures by hard links, which the server reads as files of their own.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs.page import make_rows
from tests.support.run_folders import append_lines, write_run

NAMES = "reward_mean,kl_mean,entropy,response_length_mean,finished_share,loss,seconds"
TEXT = "a response of some words that a policy may well have sampled"


class Page:
    """A served page, by the address that it prints."""

    def __init__(self, address: str) -> None:
        self._origin, _, self._token = address.partition("#token=")

    def get(self, path: str) -> tuple[float, Any]:
        """Seconds until the whole reply is there, and the reply."""
        request = urllib.request.Request(f"{self._origin}api/v1{path}")
        request.add_header("Authorization", f"Bearer {self._token}")
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=600) as reply:
            body = reply.read()
        return time.perf_counter() - began, json.loads(body)

    def open(self, id: str) -> float:
        """Seconds of a run's first view."""
        return sum(self.get(f"/runs/{id}{path}")[0] for path in ("", f"/metrics?names={NAMES}"))


def write_runs(folder: Path, runs: int, steps: int, figures: int) -> None:
    first = write_run(folder / "run-0", steps=make_rows(steps, figures))
    for number in range(1, runs):
        other = write_run(folder / f"run-{number}")
        (other / "metrics.jsonl").unlink()
        os.link(first / "metrics.jsonl", other / "metrics.jsonl")


def write_samples(run: Path, count: int) -> None:
    ids = {"prompt_length": 5, "response_length": 12, "weight_version": 1}
    append_lines(
        run / "samples.jsonl",
        (
            {
                "step": 1 + place // 100,
                "prompt_id": f"0/{place // 4}",
                "prompt": "a prompt",
                "response": f"{TEXT} {place}",
                "score": place % 97,
                **ids,
            }
            for place in range(count)
        ),
    )


def read_peak(process: int) -> int:
    """Megabytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024 // 1_000_000


def read_work(process: int) -> float:
    """Processor seconds so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def await_step(page: Page, id: str, file: Path, step: int) -> float:
    """Seconds from the append to a reply that has the step, which is asked for again and again."""
    began = time.perf_counter()
    append_lines(file, [{"step": step, "reward_mean": 1.0}])
    while not page.get(f"/runs/{id}/metrics?names=reward_mean&after={step - 1}")[1]["steps"]:
        pass
    return time.perf_counter() - began


def measure(folder: Path, process: "subprocess.Popen[str]", steps: int) -> None:
    assert process.stdout is not None
    page = Page(process.stdout.readline().split("page on ")[-1].split()[-1])
    seconds, reply = page.get("/runs")
    print(f"list of {len(reply['runs'])} runs {seconds:.2f} s", flush=True)
    ids = {Path(run["place"]).name: run["id"] for run in reply["runs"]}
    before = read_work(process.pid)
    opened = sorted(page.open(id) for name, id in ids.items() if name != "sampled")
    work = (read_work(process.pid) - before) / len(opened)
    print(f"first view {opened[0]:.2f} to {opened[-1]:.2f} s, of the processor {work:.2f} s", flush=True)
    print(f"peak {read_peak(process.pid)} MB", flush=True)
    print(f"a new step {await_step(page, ids['run-0'], folder / 'run-0' / 'metrics.jsonl', steps + 1):.2f} s")
    samples = f"/runs/{ids['sampled']}/samples"
    before = read_work(process.pid)
    first, reply = page.get(samples)
    print(f"first page of samples {first:.2f} s", flush=True)
    while not reply["whole"]:
        seconds, reply = page.get(samples)
    print(
        f"all {reply['total']:,} samples read with {read_work(process.pid) - before:.2f} s of the processor, "
        f"the last request for a page while they were {seconds:.2f} s"
    )
    queries = ("order=oldest", "order=best", "low=3&high=4", f"step={reply['steps'][0]}")
    for query in queries:
        seconds, reply = page.get(f"{samples}?{query}")
        print(f"{query}: {seconds:.2f} s, the first of {reply['count']:,} is {reply['samples'][0]['id']}")
    seconds, _ = page.get(f"/runs/{ids['sampled']}/scores")
    print(f"scores {seconds:.2f} s, peak {read_peak(process.pid)} MB")
    print(search_all(page, samples, f"{TEXT} 0"))
    print(f"peak {read_peak(process.pid)} MB")


def search_all(page: Page, samples: str, text: str) -> str:
    """Searches until the oldest sample, which alone has the text as its end."""
    began, cursor, searched, slowest = time.perf_counter(), "", 0, 0.0
    while cursor is not None:
        seconds, reply = page.get(f"{samples}?search={quote(text)}&limit=500{cursor}")
        searched, slowest = searched + reply["searched"], max(slowest, seconds)
        cursor = f"&before={reply['next']}" if reply["next"] else None
    return f"search of {searched:,} samples {time.perf_counter() - began:.2f} s, each page {slowest:.2f} s at most"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("runs", 100), ("steps", 10_000), ("figures", 200), ("samples", 1_000_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_runs(folder, arguments.runs, arguments.steps, arguments.figures)
        write_samples(write_run(folder / "sampled"), arguments.samples)
        command = [sys.executable, "-m", "rlhf_operator.cli", "ui", str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                measure(folder, process, arguments.steps)
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
