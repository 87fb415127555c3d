"""Full collections run at chosen moments."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from rlhf_trainer.process.garbage import full_collections_by_hand


class Node:
    def __init__(self) -> None:
        self.own = self  # freed by a collection alone


@pytest.fixture
def full() -> Iterator[list[str]]:
    """Grows with each full collection."""
    phases: list[str] = []

    def record(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            phases.append(phase)

    gc.callbacks.append(record)
    yield phases
    gc.callbacks.remove(record)


def test_full_collections_run_where_they_are_asked_for(full: list[str]) -> None:
    with full_collections_by_hand():
        full.clear()
        nodes = [[Node()] for _ in range(1_000_000)]
        assert not full
        del nodes
        gc.collect()
        assert full == ["start"]
    assert not gc.get_freeze_count()
    gc.freeze()  # see tests/conftest.py
