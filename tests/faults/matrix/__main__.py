"""Runs the fault matrix on this machine and writes benchmarks/results/faults.md; `make faults`.

    .venv/bin/python -m tests.faults.matrix [--minutes M] [--times N] [--only WORDS] [--part I/N] [--results FILE]
    .venv/bin/python -m tests.faults.matrix --page
    .venv/bin/python -m tests.faults.matrix --kills N --seed S [--slow]
    .venv/bin/python -m tests.faults.matrix --spot M

Cells that the results have N times already are left out, so a matrix may be run in several sittings; on a machine of
many cores at the same time, each with its part and its results, which are joined afterwards. With `--kills` one
job that generates ahead is killed so often instead, at random; with `--slow` one generator alone, while the other is
slowed. With `--spot` one of three generators is killed every minute for M minutes, in turns with M undisturbed ones.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.cluster.packages import Unavailable
from tests.faults.matrix.cells import GPU, PODS, STALENESS, Cell, Mode, cells
from tests.faults.matrix.deployment import on_pods
from tests.faults.matrix.kills import KILLED, MODE, OF_GENERATOR_1, SPOT, schedule
from tests.faults.matrix.page import PAGE, page
from tests.faults.matrix.pods import OnPods
from tests.faults.matrix.running import NoStep, Running, here, note, running
from tests.support import rlhf
from tests.support.servers.seaweed import Server

RESULTS, KILLS, SPELLS = (
    PAGE.with_suffix(".jsonl"),
    PAGE.with_name("kills.jsonl"),
    PAGE.with_name("spot.jsonl"),
)
SPELL_MINUTES = 4.0
"""Length of a turn of `--spot`."""
STORE_MEGABYTES, LARGE_MEGABYTES, LEFT_MEGABYTES = 512, 8192, 192
"""Size of the object store's disk, and what has to be free of it for another cell: SeaweedFS keeps what was deleted. On
a GPU a step with its checkpoint takes a fifth of a second; spells are long."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=600, help="no cell is begun after that")
    parser.add_argument("--times", type=int, default=3, help="each cell")
    parser.add_argument(
        "--only",
        default="",
        help="cells that have these words, such as 'staleness SIGKILL'; commas between alternatives",
    )
    parser.add_argument(
        "--part",
        type=_part,
        default=(0, 1),
        metavar="I/N",
        help="of N parts of the cells, the one from 0 to N-1",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--page", action="store_true", help="only write the page of the results that there are"
    )
    parser.add_argument("--kills", type=int, default=0, help="kills at random of one job, in place of cells")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--slow", action="store_true", help="kill one generator alone, the other is slowed")
    parser.add_argument("--spot", type=float, default=0, help="minutes of spot-like loss of generators")
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    if options.kills:
        _kills(options.seed, options.kills, slow=options.slow)
    elif options.spot:
        _spot(options.spot)
    elif not options.page:
        until = time.monotonic() + 60 * options.minutes
        for mode in STALENESS:
            while todo := _todo(mode, options.times, options.only, options.part, options.results):
                try:
                    if time.monotonic() > until or not _sitting(mode, todo, until, options.results):
                        break
                except Unavailable as reason:
                    print(f"{mode}: {reason}", flush=True)
                    break
    rows, kills, spells = (
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (options.results, KILLS, SPELLS)
    )
    PAGE.write_text(page(rows, kills, spells))


def _part(text: str) -> tuple[int, int]:
    number, of = map(int, text.split("/"))
    if not 0 <= number < of:
        raise argparse.ArgumentTypeError(f"{text}: not one of 0/{of} to {of - 1}/{of}")
    return number, of


def _todo(mode: Mode, times: int, only: str, part: tuple[int, int], results: Path) -> list[Cell]:
    """All cells of a part once, then again, until each has been run so often."""
    keys = ("mode", "victim", "fault", "moment")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    done = Counter(Cell(**{key: row[key] for key in keys}) for row in rows)
    chosen = [c for c in cells(mode) if _chosen(" ".join(vars(c).values()), only)][part[0] :: part[1]]
    return [cell for turn in range(times) for cell in chosen if done[cell] <= turn]


def _chosen(cell: str, only: str) -> bool:
    return any(all(word in cell for word in words.split()) for words in only.split(","))


def _sitting(mode: Mode, todo: Sequence[Cell], until: float, results: Path) -> bool:
    """One job, until a cell stops it for good, which is noted, or its store's disk fills up; whether it ran any."""
    ran = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as name, _job(mode, Path(name)) as (job, data):
        for cell in todo:
            if time.monotonic() > until or shutil.disk_usage(data).free < LEFT_MEGABYTES << 20:
                break
            print(" ".join(vars(cell).values()), end=": ", flush=True)
            try:
                outcome = job.strike(cell)
            except (NoStep, LookupError) as error:
                print(f"no step: {error}", flush=True)
                note(cell, {"failed": str(error)}, results)
                logs = results.with_suffix(".failed")
                if mode != PODS:
                    shutil.copytree(Path(name, "run", "logs"), logs, dirs_exist_ok=True)
                break
            ran += 1
            note(cell, vars(outcome), results)
            print(outcome, flush=True)
    return bool(ran)


def _kills(seed: int, kills: int, *, slow: bool) -> None:
    """One job, until it was killed so often, or a kill stops it for good, which is noted."""
    with (
        tempfile.TemporaryDirectory(prefix="kills-") as name,
        _store(Path(name), STORE_MEGABYTES) as store,
        running(MODE, Path(name), store, begun=True) as job,
        job.slowed() if slow else nullcontext(),
    ):
        for number, kill in enumerate(schedule(seed, kills, OF_GENERATOR_1 if slow else KILLED)):
            kill_row = {"seed": seed, "number": number, "after": kill.after, "slow": slow}
            try:
                outcome = job.kill(kill.cell, kill.after)
            except (NoStep, LookupError) as error:
                note(kill.cell, {**kill_row, "failed": str(error)}, KILLS)
                print(f"no step: {error}", flush=True)
                break
            note(kill.cell, {**kill_row, **vars(outcome)}, KILLS)
            print(kill, outcome, flush=True)


def _spot(minutes: float) -> None:
    """One job with three generators, in turns undisturbed and with one of them killed every minute."""
    with (
        tempfile.TemporaryDirectory(prefix="spot-") as name,
        _store(Path(name), LARGE_MEGABYTES) as store,
        running(MODE, Path(name), store, generators=len(SPOT)) as job,
    ):
        for turn in range(2 * math.ceil(minutes / SPELL_MINUTES)):
            spot = turn % 2 == 1
            spell = job.spell(60 * min(minutes, SPELL_MINUTES), spot=spot)
            row = {"spot": spot, **vars(spell), "load": round(os.getloadavg()[0], 1), **here()}
            print(row, flush=True)
            with SPELLS.open("a") as out:
                out.write(json.dumps(row) + "\n")


@contextmanager
def _job(mode: Mode, folder: Path) -> Iterator[tuple[Running | OnPods, Path]]:
    """The job of a mode, and a folder in the file system of its checkpoints."""
    if mode == PODS:
        with on_pods(folder) as job:
            yield job, folder
    else:
        megabytes = LARGE_MEGABYTES if mode == GPU else STORE_MEGABYTES
        with _store(folder, megabytes) as store, running(mode, folder, store) as local:
            yield local, store.data


@contextmanager
def _store(folder: Path, megabytes: int) -> Iterator[Server]:
    """The S3 server, its data in a file system of its own, so that its disk can be full."""
    server = Server(folder)
    server.data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(server.data)]
    subprocess.run(mount, check=True, timeout=30)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        subprocess.run(["umount", "--lazy", str(server.data)], check=True, timeout=30)


if __name__ == "__main__":
    rlhf.Popen = subprocess.Popen  # the times are those of processes that import what they need
    sys.exit(main())
