"""The learning rate at the steps that matter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_trainer.maths.schedule import learning_rate


def test_warmup_spends_no_step_at_zero_and_reaches_the_base():
    rates = [
        learning_rate(s, base=8.0, warmup_steps=4, total_steps=10, schedule="constant") for s in range(10)
    ]
    assert rates == [2.0, 4.0, 6.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]


@pytest.mark.parametrize(
    ("schedule", "quarter", "half", "end"),
    [("linear", 0.75, 0.5, 0.0), ("cosine", 0.8535533906, 0.5, 0.0), ("constant", 1.0, 1.0, 1.0)],
)
def test_decay_by_hand(schedule, quarter, half, end):
    rates = [
        learning_rate(s, base=1.0, warmup_steps=2, total_steps=10, schedule=schedule)
        for s in (2, 4, 6, 10, 1000)
    ]
    assert rates == pytest.approx([1.0, quarter, half, end, end])


def test_a_floor_is_where_the_rate_ends():
    settings = {"warmup_steps": 2, "total_steps": 10, "floor": 0.2}
    linear, cosine = (
        [learning_rate(s, base=5.0, schedule=schedule, **settings) for s in (0, 2, 4, 6, 10, 1000)]
        for schedule in ("linear", "cosine")
    )
    assert linear == pytest.approx([2.5, 5.0, 4.0, 3.0, 1.0, 1.0])
    assert cosine == pytest.approx([2.5, 5.0, 1.0 + 4.0 * 0.8535533906, 3.0, 1.0, 1.0])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_with_decay_steps_the_rate_stays_until_the_last_ones(schedule):
    """Warmup-stable-decay: 2 steps up, 4 at the top, 4 down."""
    rates = [
        learning_rate(
            s, base=8.0, warmup_steps=2, total_steps=10, schedule=schedule, floor=0.25, decay_steps=4
        )
        for s in range(11)
    ]
    assert rates[:7] == [4.0, *[8.0] * 6]
    assert rates[8] == pytest.approx(5.0)
    assert rates[6] > rates[7] > rates[8] > rates[9] > rates[10] == 2.0


def test_a_decay_never_begins_within_the_warmup():
    settings = {"base": 1.0, "warmup_steps": 4, "total_steps": 8, "schedule": "linear"}
    assert [learning_rate(s, **settings, decay_steps=100) for s in range(9)] == [
        learning_rate(s, **settings) for s in range(9)
    ]


@given(
    st.integers(0, 50),
    st.integers(0, 20),
    st.integers(1, 40),
    st.sampled_from(["constant", "linear", "cosine"]),
)
def test_never_above_the_base_nor_negative(step, warmup_steps, total_steps, schedule):
    settings = {"warmup_steps": warmup_steps, "total_steps": total_steps, "schedule": schedule}
    assert 0 <= learning_rate(step, base=3e-4, **settings) <= 3e-4
    assert learning_rate(step, base=0.0, **settings) == 0


def test_unknown_schedule():
    with pytest.raises(ValueError, match="'constant', 'linear' or 'cosine'; got 'step'"):
        learning_rate(1, base=1.0, warmup_steps=0, total_steps=1, schedule="step")
