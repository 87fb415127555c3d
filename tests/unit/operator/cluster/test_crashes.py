"""Crashes of the operator at every step of a reconcile, and failing calls: never two gangs, no restart counted twice,
and the job recovers."""

import datetime

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.cluster.world import World

from rlhf_api.roles import UNTRUSTED, Role

BUDGET = "1000"
PAIRS = ("spec.generator.tensorParallelSize=2", "spec.generator.podsPerReplica=2")
SECONDS = {"job-generator-0-1": "job-generator-0", "job-generator-1-1": "job-generator-1"}
"""Second pods of generators that have two, and the first of each."""
PODS = [
    *("job-trainer-0", "job-trainer-1", "job-generator-0"),
    *("job-generator-1", "job-reward-0", "job-reference-0"),
]
incidents = st.lists(
    st.tuples(
        st.sampled_from(["fails", "vanishes", "deleted", "kubelet", "suspend", "resume", "scale", "wait"]),
        st.sampled_from([*PODS, *SECONDS]),
        st.integers(0, 8),
    ),
    max_size=25,
)


def happen(world: World, what: str, name: str) -> int:
    """Lets it happen; returns how many failures there were."""
    base = tuple(o for o in world.overrides if not o.startswith(("spec.suspend", "spec.generator.rep")))
    if what == "kubelet":
        world.kubelet()
    elif what == "suspend":
        world.overrides = (*base, "spec.suspend=true")
    elif what == "resume":
        world.overrides = (*base, "spec.generator.replicas=2")
    elif what == "scale":
        world.overrides = (*base, f"spec.generator.replicas={1 + len(world.made) % 3}")
    elif name in world.pods and what == "vanishes":
        del world.pods[name]
    elif name in world.pods and what == "deleted":
        world.pods[name]["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
    elif what == "fails" and world.runs(name):
        world.end(name, 1)
        return 1
    return 0


def number(world: World, name: str) -> int:
    """Of a pod among all that were ever made."""
    return int(world.pods[name]["metadata"]["uid"].removeprefix("uid-"))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(incidents, st.booleans())
def test_one_gang_at_a_time_nothing_counted_twice_and_it_comes_right(story, pairs):
    roles = (role for role in Role if role not in UNTRUSTED)  # which the job has not
    budgets = tuple(f"spec.{role.value}.backoffLimit={BUDGET}" for role in roles)
    world = World(
        ("spec.trainer.replicas=2", "spec.generator.replicas=2", *budgets, *(PAIRS if pairs else ()))
    )
    failures = 0
    for what, name, parts in story:
        failures += happen(world, what, name)
        met = {first for first in SECONDS.values() if world.runs(first)}
        began = len(world.made)
        left = iter(range(parts))  # the operator is killed after so many parts of what it wanted to do
        world.carry_out(world.make_plan(), only=lambda _what, left=left: next(left, None) is not None)
        if next(left, None) is None:
            world.remembered = None
        assert not met & {SECONDS.get(name) for name in world.made[began:]}, (
            "none comes to one that has met another"
        )
        assert len(world.attempts()) <= 1
        restarts = world.status.restarts if world.status else 0
        assert restarts <= failures
        world.now += datetime.timedelta(minutes=1)
    happen(world, "resume", "")
    world.settle(seconds=60)  # the longest pause is five minutes
    expected = [*PODS, *SECONDS] if pairs else PODS
    assert sorted(name for name in world.pods if world.runs(name)) == sorted(expected)
    if pairs:
        assert all(number(world, second) > number(world, first) for second, first in SECONDS.items())
    assert len(world.attempts()) == 1
    assert world.status is not None
    assert world.status.restarts <= failures
