"""Two ranks over gloo that save one snapshot together."""

from pathlib import Path

from tests.support.forked.forks import run_ranks


def test_every_rank_quotes_the_failure_of_one(tmp_path: Path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "segments").write_text("no directory")
    stores = f"file://{tmp_path / 'whole'}", f"file://{tmp_path / 'broken'}"
    outputs = run_ranks(2, "tests.unit.store.saving_rank", *stores, folder=tmp_path)
    first, second = (text.strip() for text in outputs)
    assert str(tmp_path / "broken" / "segments") in second
    assert first == f"rank 1 could not save its share: {second}"
