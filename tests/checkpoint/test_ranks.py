"""Two ranks over gloo that save one snapshot together."""

from pathlib import Path

from tests.support.ranks import two_ranks

RANK = """
import sys, torch
from datetime import timedelta
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.failures import StoreError
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.comms.ranks import Ranks

ranks = Ranks.join(0)
archive = Archive(sys.argv[1 + ranks.rank], patience=timedelta(seconds=1))
committer = Committer.take_over(archive, Retention(last=2)) if ranks.first else None
saver = Saver(ranks, archive, committer, committed=lambda snapshot: print("saved"))
weights = {str(i): torch.full((4,), float(i)) for i in range(8)}
saver.begin(1, {}, {"model": weights.items(), "critic": weights.items()}, {})
try:
    saver.finish()
except StoreError as error:
    print(error)
sys.stdout.flush()
import os; os._exit(0)
"""


def test_every_rank_quotes_the_failure_of_one(tmp_path: Path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "segments").write_text("no directory")
    stores = f"file://{tmp_path / 'whole'}", f"file://{tmp_path / 'broken'}"
    with two_ranks("-c", RANK, *stores) as started:
        first, second = (process.communicate(timeout=120)[0].strip() for process in started)
    assert str(tmp_path / "broken" / "segments") in second
    assert first == f"rank 1 could not save its share: {second}"
