"""Namespaces take turns: thousands of jobs of one do not hold up another's."""

import itertools

from tests.unit.operator.cluster.watching.test_queue import taken

from rlhf_operator.cluster.watching.queue import Queue

CROWD = [("crowded", str(i)) for i in range(2_000)]
ONE, TWO = ("quiet", "one"), ("quiet", "two")


def queue() -> Queue:
    return Queue(itertools.count(1000).__next__, jitter=lambda: 1.0)


def test_a_change_in_one_namespace_does_not_wait_for_all_new_jobs_of_another():
    crowded = queue()
    for key in (ONE, TWO):
        crowded.add(key)
    assert taken(crowded) == [ONE, TWO]  # they are new no more
    for key in CROWD:
        crowded.add(key)
    assert crowded.take() == CROWD[0]
    for key in (ONE, TWO):
        crowded.add(key)
    order = taken(crowded)
    assert max(order.index(ONE), order.index(TWO)) < 4
    assert sorted(order) == sorted([*CROWD[1:], ONE, TWO])


def test_what_is_added_again_takes_no_second_turn():
    crowded = queue()
    for key in (*CROWD[:3], ONE, TWO):
        crowded.add(key)
        crowded.add(key)
    assert taken(crowded) == [CROWD[0], ONE, CROWD[1], TWO, CROWD[2]]
