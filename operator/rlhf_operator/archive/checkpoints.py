"""`rlhf checkpoint ls|verify|gc|export STORE`: lists, verifies and collects garbage in any checkpoint store, and writes
models of it."""

import argparse
import datetime
import sys

from rlhf_store.errors import DamagedSnapshot

from ..console.exits import FAILED, Misuse, print_line
from ..console.text import columns
from . import open_store
from .export import export
from .open_store import archive


def ls(options: argparse.Namespace) -> int:
    checkpoints = archive(options.store)
    rows = [("STEP", "TIME", "SIZE", "EVALUATION", "EPOCH", "HEALTH")]
    for entry in checkpoints.entries():
        try:
            size = _size(sum(segment.size for segment in checkpoints.open(entry).manifest.segments()))
        except DamagedSnapshot:
            if entry not in checkpoints.entries():
                continue  # the run has deleted it meanwhile
            size = "damaged"
        reward = "" if entry.reward is None else f"{entry.reward:.4g}"
        rows.append(
            (str(entry.step), entry.time, size, reward, str(entry.epoch), "good" if entry.good else "bad")
        )
    print_line(
        "\n".join(columns(rows)) if len(rows) > 1 else f"{options.store} holds no checkpoint", sys.stdout
    )
    return 0


def verify(options: argparse.Namespace) -> int:
    """Reads every object; exit code 0 if all are intact."""
    checkpoints, damaged = archive(options.store), 0
    entries = checkpoints.entries()
    if not entries:
        print_line(f"{options.store} holds no checkpoint", sys.stdout)
    for entry in entries:
        try:
            snapshot = checkpoints.open(entry)
            sizes = [segment.size for segment in snapshot.verify()]
            print_line(f"step {entry.step}: intact, {len(sizes)} segments, {_size(sum(sizes))}", sys.stdout)
        except DamagedSnapshot as error:
            if entry not in checkpoints.entries():
                print_line(f"step {entry.step}: deleted by the run meanwhile", sys.stdout)
                continue
            damaged += 1
            print_line(f"step {entry.step}: DAMAGED: {error}", sys.stdout)
    if damaged:
        print_line(f"error: {_of(damaged)} damaged; a run goes on from the newest that is intact", sys.stderr)
    return FAILED if damaged else 0


def gc(options: argparse.Namespace) -> int:
    """Deletes unreferenced objects, except young ones, which a running trainer may be about to reference."""
    checkpoints = archive(options.store)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=options.older_than)
    everything = checkpoints.garbage()
    old = [listed for listed in everything if listed.modified < before]
    if not options.dry_run:
        checkpoints.store.delete([listed.key for listed in old])
    done = "would delete" if options.dry_run else "deleted"
    young = f"; left {len(everything) - len(old)} younger" if len(old) < len(everything) else ""
    count = "1 object" if len(old) == 1 else f"{len(old)} objects"
    print_line(f"{done} {count}, {_size(sum(listed.size for listed in old))}{young}", sys.stdout)
    return 0


_VERBS = {"ls": ls, "verify": verify, "gc": gc, "export": export}


def meant(options: argparse.Namespace) -> bool:
    """True if `rlhf checkpoint` was given a store, not a job."""
    return options.command == "checkpoint" and (options.store is not None or options.name in _VERBS)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    if options.store is None or options.name not in _VERBS:
        raise Misuse(
            "`checkpoint NAME` asks a job, `checkpoint ls|verify|gc|export STORE` looks into a store"
        )
    if options.step is not None and options.name != "export":
        raise Misuse(f"`checkpoint {options.name} STORE` takes no further argument; got {options.step}")
    options.does = _VERBS[options.name]
    return open_store.run(options)


def _of(count: int) -> str:
    return "1 checkpoint is" if count == 1 else f"{count} checkpoints are"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
