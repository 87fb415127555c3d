"""The prompt ledger: nothing lost, nothing trained on twice, whatever crashes."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.replay.ledger import OTHER, REASONS, Ledger, LedgerError, Runs

ROWS = 10


@given(st.lists(st.integers(0, 60), unique=True), st.integers(0, 60), st.integers(0, 60))
def test_runs_are_a_set(positions, low, high):
    runs = Runs()
    for position in positions:
        runs.add(position)
    assert len(runs) == len(positions)
    assert all((position in runs) == (position in positions) for position in range(-1, 62))
    assert runs.count(low, high) == sum(low <= position < high for position in positions)
    assert runs.end == max(positions, default=-1) + 1
    state = runs.state()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(state)), "as few runs as there can be"
    assert Runs(json.loads(json.dumps(state))).state() == state
    for position in positions[::2]:
        runs.remove(position)
    again = Runs()
    for position in positions[1::2]:
        again.add(position)
    assert runs.state() == again.state()


@pytest.mark.parametrize("bad", [[[3, 3]], [[3, 2]], [[0, 2], [2, 4]], [[4, 6], [0, 1]]])
def test_runs_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="must ascend"):
        Runs(bad)


def test_a_prompt_goes_its_way_once():
    ledger = Ledger(ROWS)
    ledger.issue(range(4))
    ledger.requeue([2, 2])
    ledger.answer([0, 1, 2])
    ledger.drop([3], "HTTP 400: too long")
    held = [0, 1, 2, 3]
    status = ledger.status(held)
    assert (status.epoch, status.issued, status.returned, status.trained) == (0, 4, 3, 0)
    assert (status.requeued, status.dropped, status.lost) == (2, 1, 0)
    ledger.train([0, 1, 2])
    assert ledger.status(()).model_dump() == {
        "epoch": 0, "issued": 4, "returned": 3, "trained": 3, "requeued": 2, "filtered": 0,
        "dropped": 1, "lost": 0,
    }  # fmt: skip
    assert ledger.dropped == {"HTTP 400: too long": 1}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda ledger: ledger.train([0]),
            r"prompt 0 of epoch 0 \(position 0\) is trained on after it was trained on",
        ),
        (
            lambda ledger: ledger.train([12]),
            r"prompt 2 of epoch 1 \(position 12\) is trained on without a response",
        ),
        (lambda ledger: ledger.train([2]), "trained on without a response"),
        (lambda ledger: ledger.train([1, 1]), "trained on after it was trained on or dropped"),
        (lambda ledger: ledger.issue([0]), "issued a second time"),
        (lambda ledger: ledger.answer([7]), "answered without having been issued"),
        (lambda ledger: ledger.answer([1]), "answered a second time"),
        (lambda ledger: ledger.drop([0], "late"), "dropped after it was trained on"),
        (lambda ledger: ledger.requeue([9]), "requeued without having been issued"),
    ],
)
def test_what_must_not_happen_raises(wrong, says):
    ledger = Ledger(ROWS)
    ledger.issue(range(3))
    ledger.answer([0, 1])
    ledger.train([0])
    with pytest.raises(LedgerError, match=says):
        wrong(ledger)


def test_a_prompt_that_nobody_has_is_lost():
    ledger = Ledger(ROWS)
    ledger.issue(range(6))
    ledger.answer(range(6))
    ledger.train(range(4))
    assert ledger.count_lost(held=[4, 5]) == 0
    assert ledger.count_lost(held=[4]) == 1
    assert ledger.count_lost(held=[0, 4]) == 1, "who is trained on is not held as well"


def test_epochs_are_counted_apart():
    ledger = Ledger(ROWS)
    for first in range(0, 24, 4):
        positions = range(first, first + 4)
        ledger.issue(positions)
        ledger.requeue(positions[:1])
        ledger.answer(positions)
        ledger.train(positions)
    status = ledger.status(())
    assert (status.epoch, status.issued, status.trained, status.requeued) == (2, 4, 4, 1)
    assert ledger.state()["trained"] == [[0, 24]], "a run, not a position for each"


def test_reasons_are_bounded():
    ledger = Ledger(1000)
    ledger.issue(range(100))
    for position in range(100):
        ledger.drop([position], f"reason {position} " + "x" * 1000)
    assert len(ledger.dropped) == REASONS + 1
    assert ledger.dropped[OTHER] == 100 - REASONS
    assert len(json.dumps(ledger.state())) < 10_000


@given(st.data(), st.integers(1, 7), st.integers(1, 9))
def test_whatever_crashes_every_prompt_is_trained_on_once_an_epoch(data, rows, per_step):
    """A run that saves now and then, and dies at any point of a step: the ledger goes back with the rest."""
    ledger, position = Ledger(rows), 0
    trained: list[int] = []  # what the weights have seen
    saved = (ledger.state(), position, list(trained), list[int]())
    pending: list[int] = []
    while position < 4 * rows:
        if not pending:
            pending = list(range(position, position + per_step))
            position += per_step
            ledger.issue(pending)
            ledger.requeue(data.draw(st.lists(st.sampled_from(pending), max_size=2)))
            refused = data.draw(st.sets(st.sampled_from(pending), max_size=1)) if len(pending) > 1 else set()
            ledger.drop(refused, "refused")
            pending = [p for p in data.draw(st.permutations(pending)) if p not in refused]
            ledger.answer(pending)
        assert ledger.count_lost(pending) == 0
        happens = data.draw(st.sampled_from(["train", "train", "save pending", "crash"]))
        if happens == "train":
            ledger.train(pending)
            trained += pending
            pending = []
            if data.draw(st.booleans()):
                saved = (json.loads(json.dumps(ledger.state())), position, list(trained), [])
        elif happens == "save pending":
            saved = (json.loads(json.dumps(ledger.state())), position, list(trained), list(pending))
        else:
            ledger, position, trained, pending = (
                Ledger.restored(saved[0]), saved[1], list(saved[2]), list(saved[3]),
            )  # fmt: skip
            assert ledger.state() == saved[0]
        assert ledger.count_lost(pending) == 0
        assert len(trained) == len(set(trained))
    dropped = {
        p for runs in ledger.state()["dropped"].values() for low, high in runs for p in range(low, high)
    }
    assert sorted([*trained, *pending, *dropped]) == list(range(position))
