"""The recorder of a step's times, on a clock of the test's own."""

import pytest

from rlhf_api.contract.run import Member
from rlhf_api.contract.timeline import Span
from rlhf_api.roles import Role
from rlhf_trainer.process.timeline import MOST_SPANS, Recorder, join_times

ONE, OTHER = (
    Member(role=Role.GENERATOR, name=name, uid=name, address="http://127.0.0.1:1")
    for name in ("generator-0", "generator-1")
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def recorder(clock):
    recorder = Recorder(clock)
    recorder.begin_step()
    return recorder


def test_a_rank_has_what_it_did_since_the_step_began(recorder, clock):
    with recorder.measure("of the step before"):
        clock.now += 1
    recorder.begin_step()
    clock.now += 1
    began = clock.now
    with recorder.measure("train_policy"):
        clock.now += 2
    recorder.record("publish", began)
    assert recorder.take_step(3)[1] == [
        Span("trainer", 3, "train_policy", 1, 3),
        Span("trainer", 3, "publish", 1, 3),
    ]


def test_a_process_works_while_it_has_any_request(recorder, clock):
    first = recorder.begin_request(ONE)
    clock.now += 1
    second, other = recorder.begin_request(ONE), recorder.begin_request(OTHER)
    clock.now += 1
    first(None)
    clock.now += 1
    second(None)
    other(None)
    clock.now += 5
    assert recorder.take_step(0)[1] == [
        Span("generator", "generator-0", "generate", 0, 3),
        Span("generator", "generator-1", "generate", 1, 3),
    ]


def test_a_request_over_several_steps_is_in_each_of_them(recorder, clock):
    end = recorder.begin_request(ONE)
    clock.now += 2
    assert recorder.take_step(0)[1] == [Span("generator", "generator-0", "generate", 0, 2)]
    clock.now += 10  # between the steps
    recorder.begin_step()
    clock.now += 1
    end(None)
    clock.now += 1
    assert recorder.take_step(0)[1] == [Span("generator", "generator-0", "generate", 0, 1)]


def test_a_step_of_many_requests_has_few_spans(recorder, clock):
    for number in range(100 * MOST_SPANS):
        end = recorder.begin_request(ONE)
        clock.now += 0.01
        end(None)
        clock.now += 0.004 if number % 100 else 1.0
    spans = recorder.take_step(0)[1]
    assert len(spans) <= MOST_SPANS
    assert spans[-1].end == pytest.approx(clock.now - 100 - 0.004, abs=1e-3)


def test_the_longest_pauses_stay():
    times = [(0.0, 1.0), (1.01, 2.0), (2.5, 6.0), (6.02, 7.0)]
    assert join_times(times, 2) == [(0.0, 2.0), (2.5, 7.0)]
    assert join_times(times, 4) == times
