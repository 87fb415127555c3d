"""A resumed run goes on with the data that it had: it refuses another number of rows, and warns of other rows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.trainer.training.running import PAIRS, RANKS, Job

from rlhf_api.errors.problem import InvalidJob
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.data.dataset import open_datasets
from rlhf_trainer.training.loop import train


def test_another_number_of_rows_is_refused():
    """Its positions would be of other epochs: some rows trained on twice, others never."""
    cut = Job("dpo").steps(0, 2).snapshot(2)
    assert Job("dpo").restore(cut).task.state() == cut.state
    message = r"spec.data.train: the checkpoint belongs to a run with 10 samples an epoch; got 9; go on with the same"
    with pytest.raises(InvalidJob, match=message):
        Job("dpo", rows=PAIRS[:9]).restore(cut)


def run(folder: Path, steps: int) -> str | None:
    """A run, resumed if it was saved before, up to a number of steps; returns the report of changed data."""
    store = f"{folder.as_uri()}/store"
    overrides = (
        f"spec.steps={steps}",
        "spec.data.promptsPerStep=2",
        f"spec.data.train=['{folder}/train.jsonl']",
        f"spec.evaluation={{data: ['{folder}/held_out.jsonl'], everySteps: 9}}",
        f"spec.checkpoint={{store: '{store}', everySteps: 1}}",
    )
    datasets = open_datasets(Job("dpo", "", *overrides).spec)
    job = Job("dpo", "", *overrides, rows=datasets.rows, held_out=datasets.held_out)
    ctx = replace(job.ctx, workdir=folder, data=datasets.checksums())
    job.task._ctx = ctx
    ctx.services.control.checkpoint_requested = ctx.stop
    archive = Archive(store)
    committer = Committer.take_over(archive, Retention(last=2))
    with Saver(RANKS, archive, committer, committed=lambda _: None) as saver:
        assert train(ctx, job.task, saver, committer.cuts, None) == 0
    return next((report["data_changed"] for report in job.told if "data_changed" in report), None)


def write(file: Path, *chosen: str) -> None:
    rows = [{"prompt": "p", "chosen": good, "rejected": "evil"} for good in chosen]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("changed", ["train.jsonl", "held_out.jsonl"])
def test_rows_changed_since_the_checkpoint_are_told_once(changed, tmp_path):
    """Their number is as before, so that the run goes on. The next checkpoint is of the new ones."""
    for name in ("train.jsonl", "held_out.jsonl"):
        write(tmp_path / name, "one", "two", "three", "four")
    assert run(tmp_path, 1) is None
    assert run(tmp_path, 2) is None
    write(tmp_path / changed, "one", "two", "five", "four")
    report = run(tmp_path, 3)
    assert report is not None
    assert report.startswith(
        "rows have changed since the checkpoint of step 2, and the run goes on with those"
    )
    assert report.endswith(f"`rlhf clone --from-step 2`: {tmp_path / changed}")
    assert run(tmp_path, 4) is None


def test_rows_in_another_order_are_told(tmp_path):
    for name in ("train.jsonl", "held_out.jsonl"):
        write(tmp_path / name, "one", "two", "three", "four")
    assert run(tmp_path, 1) is None
    write(tmp_path / "train.jsonl", "two", "one", "three", "four")
    assert "step 1" in (run(tmp_path, 2) or "")
