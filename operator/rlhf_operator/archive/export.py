"""`rlhf checkpoint export`: runs the trainer's packages, which write a checkpoint's model as a Hugging Face folder."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_api.contract.run import ExportRequest
from rlhf_api.errors.problem import InvalidJob, Problem

from ..console.exits import Misuse
from ..console.trainer_packages import run_module
from .open_store import archive

if TYPE_CHECKING:
    from rlhf_store.manifest import Entry

BEST, LATEST = "best", "latest"


def export(options: argparse.Namespace) -> int:
    """Writes the model of a checkpoint; returns the exit code."""
    if options.step is None or options.out is None:
        raise Misuse(f"`checkpoint export STORE STEP|{BEST}|{LATEST} OUT` needs a step and a folder to write")
    out = Path(options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidJob([Problem(str(out), "is there already; name another folder")])
    checkpoints = archive(options.store)
    entry = chosen(checkpoints.entries(), options.step, options.store)
    request = ExportRequest(
        store=checkpoints.store.url,
        step=entry.step,
        out=str(out.absolute()),
        field=options.of,
        adapter=options.adapter,
        model=options.model,
    )
    return run_module("rlhf_trainer.commands.export", request).returncode


def export_command(store: str, step: int, out: str) -> str:
    """The command line that writes the model of a checkpoint, for messages."""
    return f"rlhf checkpoint export {shlex.quote(store)} {step} {shlex.quote(out)}"


def chosen(entries: "Sequence[Entry]", step: int | str, store: str) -> "Entry":
    """The checkpoint of this step, the newest one, or the one with the best evaluation, the newer one of equals.
    Raises InvalidJob if there is none; the message lists the steps that are there."""
    if step == BEST:
        checkpoint = max(
            (e for e in entries if e.reward is not None), key=lambda e: (e.reward, e.step), default=None
        )
    else:
        checkpoint = next((e for e in reversed(entries) if step in (LATEST, e.step)), None)
    if checkpoint is None:
        steps = ", ".join(str(entry.step) for entry in entries) or "none"
        requested = (
            "with an evaluation" if step == BEST else f"of step {step}" if step != LATEST else "at all"
        )
        raise InvalidJob([Problem(store, f"has no checkpoint {requested}; it has those of steps: {steps}")])
    return checkpoint
