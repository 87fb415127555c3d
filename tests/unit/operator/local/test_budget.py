"""Restart budget: how many restarts of a role, and the backoff before each."""

import pytest
from tests.unit.api.manifests import document, job

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import parse
from rlhf_api.roles import Role
from rlhf_operator.supervision.budget import Restarts, current_window, record_restart, totals

R = Role.REWARD
SPEC = job("spec.reward.backoffWindowSeconds=100").spec


def after(*times: float, counts: bool = True) -> dict[Role, Restarts]:
    known: dict[Role, Restarts] = {}
    for at in times:
        known = record_restart(SPEC, known, R, at, counts=counts)
    return known


@pytest.mark.parametrize(
    ("times", "now", "failures"),
    [
        ((), 0, 0),
        ((0, 10, 20), 99, 3),
        ((0, 10, 20), 100, 0),  # of the first of them the window begins
        ((0, 99, 100), 101, 1),
        ((0, 150, 160), 200, 2),
    ],
)
def test_what_lies_further_back_than_the_window_is_forgiven(times, now, failures):
    assert current_window(SPEC, after(*times), R, now).failures == failures
    assert totals(after(*times)).get(R, 0) == len(times)


def test_disruptions_are_not_counted_but_make_the_pause_longer():
    restarts = after(*range(6), counts=False)[R]
    assert (restarts.total, restarts.failures, restarts.disruptions) == (0, 0, 6)
    assert restarts.pause(3) == 32.0


def test_disruptions_are_forgotten_ten_minutes_after_the_last_whatever_the_window():
    restarts = after(*range(6), counts=False)[R]
    for window in (10, 100, 10_000):
        assert restarts.at(604, window).disruptions == 6
        assert restarts.at(605, window).disruptions == 0


def test_a_failure_after_disruptions_that_outlast_their_window_opens_one():
    restarts = after(*range(6), counts=False)[R]
    failed = restarts.after(200, 100, counts=True)
    assert (failed.failures, failed.disruptions, failed.since) == (1, 6, 200)


def test_pauses_grow_to_ten_seconds_within_the_budget_and_to_five_minutes_beyond():
    pauses = [Restarts(failures=n).pause(30) for n in range(7)]
    assert pauses == [0.5, 1, 2, 4, 8, 10, 10]
    assert Restarts(failures=29).pause(30) == 10
    assert Restarts(failures=30).pause(30) == 300
    assert Restarts(disruptions=10_000).pause(30) == 300


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{action: FailJob}", "needs exitCodes or reasons"),
        ("{action: Retry, exitCodes: [1]}", "is none of FailJob, Ignore, Count"),
        ("{action: Ignore, exitCodes: [256]}", "less than or equal to 255"),
        ("{action: Ignore, reasons: ['out of memory']}", "a word of Kubernetes"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(rule, message):
    with pytest.raises(InvalidJob, match=r"spec\.trainer\.failureRules\[0\].*" + message):
        parse(document(f"spec.trainer.failureRules=[{rule}]"))
