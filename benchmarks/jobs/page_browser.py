"""A long run in a browser: the page of `rlhf ui` against TensorBoard with the same figures.

    .venv/bin/python benchmarks/jobs/page_browser.py --tensorboard PYTHON [--steps 10000] [--figures 200] [--runs 100]

Starts both over a run with so many random figures of so many steps, the page over as many such runs as are named,
and opens each in Chromium. Prints seconds by the clock until what there is to see first is there, the first time and
the best of three: of the page the list of runs, and then the charts of a run; of TensorBoard its first chart, once its
server has read all. And, while that view is scrolled to its end, the median and the longest time between two frames.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.jobs.page import write_both
from benchmarks.jobs.page_server import write_runs
from playwright.sync_api import Page, sync_playwright
from tests.page.browser import find_chromium
from tests.page.conftest import read_address

ROUNDS = 3
LIMIT_MS = 600_000
SCROLL = """() => new Promise(done => {
    const all = [...document.querySelectorAll('*')], ways = [document.scrollingElement, ...all];
    const place = ways.find(one => one.scrollHeight > one.clientHeight + 200 && one.clientHeight > 300);
    const gaps = []; let last = null;
    const step = now => {
        if (last !== null) gaps.push(now - last);
        last = now;
        place.scrollTop += 15;
        if (place.scrollTop + place.clientHeight >= place.scrollHeight - 2 || gaps.length > 400) done(gaps);
        else requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
})"""


@contextmanager
def running(*command: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def open_views(page: Page, address: str, *views: tuple[str, str]) -> list[float]:
    """Seconds until each view is there: a selector of the link to it, empty where the address leads to it, and one of
    what it has."""
    page.goto("about:blank")
    seconds, began = [], time.perf_counter()
    page.goto(address)
    for link, content in views:
        if link:
            began = time.perf_counter()
            page.locator(link).first.click()
        page.locator(content).wait_for(state="attached")
        seconds.append(time.perf_counter() - began)
    return seconds


def describe_scrolling(page: Page) -> str:
    gaps = page.evaluate(SCROLL)
    return f"{len(gaps)} frames, {median(gaps):.0f} ms each, the longest {max(gaps):.0f} ms"


def measure_page(page: Page, folder: Path) -> None:
    views = (
        ("", "table.runs a >> nth=-1"),
        ("table.runs a", "figure:has-text('at step'):has(canvas) >> nth=6"),
    )
    with running(sys.executable, "-m", "rlhf_operator.cli", "ui", str(folder)) as server:
        address = read_address(server)
        rounds = [open_views(page, address, *views) for _ in range(ROUNDS)]
        print(
            f"page: first list {rounds[0][0]:.2f} s, best {min(each[0] for each in rounds):.2f} s; ", end=""
        )
        print(f"first run {rounds[0][1]:.2f} s, best {min(each[1] for each in rounds):.2f} s")
        print(f"page, scrolled: {describe_scrolling(page)}", flush=True)


def measure_tensorboard(page: Page, python: str, events: Path, figures: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    began = time.perf_counter()
    with running(python, "-m", "tensorboard.main", "--logdir", str(events), "--port", str(port)):
        while count_tags(address) < figures:
            time.sleep(0.2)
        print(f"TensorBoard: its server has all figures after {time.perf_counter() - began:.1f} s")
        chart = "scalar-card line-chart >> nth=0"
        rounds = [open_views(page, f"{address}#timeseries", ("", chart))[0] for _ in range(ROUNDS)]
        print(f"TensorBoard: first chart {rounds[0]:.2f} s, best {min(rounds):.2f} s")
        print(f"TensorBoard, scrolled: {describe_scrolling(page)}", flush=True)


def count_tags(address: str) -> int:
    with suppress(OSError, ValueError), urllib.request.urlopen(f"{address}data/plugin/scalars/tags") as reply:
        return max((len(tags) for tags in json.load(reply).values()), default=0)
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("steps", 10_000), ("figures", 200), ("runs", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tensorboard", metavar="PYTHON", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch)
        write_runs(folder / "runs", arguments.runs, arguments.steps, arguments.figures)
        _, events = write_both(folder, arguments.steps, arguments.figures)
        with playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox"], timeout=LIMIT_MS
        ) as browser:
            page = browser.new_page(viewport={"width": 1120, "height": 760})
            page.set_default_timeout(LIMIT_MS)
            measure_page(page, folder / "runs")
            measure_tensorboard(page, arguments.tensorboard, events, arguments.figures)


if __name__ == "__main__":
    main()
